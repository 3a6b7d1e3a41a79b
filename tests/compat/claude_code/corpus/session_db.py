#!/usr/bin/env python3
"""Count calls by tool in a small database under .claude."""

import json
import os
import sqlite3
import sys

data = json.load(sys.stdin)
place = os.path.join(os.environ["CLAUDE_PROJECT_DIR"], ".claude", "metrics.db")
with sqlite3.connect(place, timeout=5) as db:
    db.execute("create table if not exists calls(session text, tool text, n integer, primary key(session, tool))")
    db.execute(
        "insert into calls values(?,?,1) on conflict(session, tool) do update set n = n + 1",
        (data["session_id"], data["tool_name"]),
    )
    [(n,)] = db.execute("select n from calls where session=? and tool=?", (data["session_id"], data["tool_name"]))
text = f"{data['tool_name']} was used {n} times"
print(json.dumps({"hookSpecificOutput": {"hookEventName": data["hook_event_name"], "additionalContext": text}}))
