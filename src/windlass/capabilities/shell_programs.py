"""What is known of programs: which run other commands, which run code, and which options write files."""

from __future__ import annotations

import re
from typing import NamedTuple


class Wrapper(NamedTuple):
    """A command whose arguments are a command: which options take a value, and how many words come before it.

    With no other options than `clear` it adds nothing to what it runs, so it does not count itself. With `joined`, a
    shell reads the rest. With `more`, it adds arguments that nobody can see.
    """

    values: str = ""
    skip: int = 0
    clear: str | None = None
    joined: bool = False
    more: bool = False


WRAPPERS = {
    "builtin": Wrapper(clear=""),
    "busybox": Wrapper(),
    "chroot": Wrapper("--userspec --groups", skip=1),
    "chrt": Wrapper("-p --pid", skip=1),
    "command": Wrapper(clear="-p"),
    "doas": Wrapper("-C -u"),
    "env": Wrapper("-u --unset -C --chdir -a --argv0", clear="-u --unset -i --ignore-environment"),
    "exec": Wrapper("-a", clear="-l -c"),
    "firejail": Wrapper(),
    "flock": Wrapper("-w --wait --timeout -E --conflict-exit-code", skip=1),
    "ionice": Wrapper("-c --class -n --classdata", clear="-c --class -n --classdata -t"),
    "ltrace": Wrapper("-o -e -p -u -n -s"),
    "nice": Wrapper("-n --adjustment", clear="-n --adjustment"),
    "nohup": Wrapper(clear=""),
    "nsenter": Wrapper("-t --target -S --setuid -G --setgid"),
    "parallel": Wrapper("-j --jobs -a --arg-file -I", more=True),
    "pkexec": Wrapper("--user"),
    "proxychains": Wrapper("-f"),
    "rlwrap": Wrapper(),
    "runuser": Wrapper("-u --user -g --group -G"),
    "setarch": Wrapper(skip=1),
    "setpriv": Wrapper("--reuid --regid --groups"),
    "setsid": Wrapper(clear="-f --fork -w --wait -c --ctty"),
    "ssh": Wrapper("-b -c -D -E -e -F -I -i -J -L -l -m -O -o -p -Q -R -S -W -w", skip=1, joined=True),
    "stdbuf": Wrapper("-i --input -o --output -e --error", clear="-i --input -o --output -e --error"),
    "strace": Wrapper("-a -e -E -I -o -O -p -P -s -S -u -X"),
    "sudo": Wrapper("-C -D -g -h -p -R -r -t -T -U -u --user --group --chdir --host --prompt --chroot --role --type"),
    "systemd-run": Wrapper("-p --property -u --unit --uid --gid -E --setenv --slice"),
    "taskset": Wrapper(skip=1),
    "time": Wrapper("-f --format -o --output", clear="-p"),
    "timeout": Wrapper("-k --kill-after -s --signal", skip=1, clear="-k --kill-after -s --signal --foreground -v"),
    "torsocks": Wrapper(),
    "unbuffer": Wrapper(clear=""),
    "unshare": Wrapper("-S --setuid -G --setgid -R --root -w --wd"),
    "watch": Wrapper("-n --interval -q", joined=True),
    "xargs": Wrapper("-a --arg-file -d --delimiter -E -I -L -n --max-args -P --max-procs -s --max-chars", more=True),
}

SHELLS = frozenset({"ash", "bash", "csh", "dash", "fish", "ksh", "mksh", "rbash", "sh", "tcsh", "zsh"})
EXECS = frozenset({"-exec", "-execdir", "-ok", "-okdir"})
INLINE = re.compile(r"(python|pypy|perl|ruby|node|nodejs|deno|bun|php|lua|luajit|tclsh|osascript|pwsh|Rscript)[\d.]*")
AWK = re.compile(r"[gmn]?awk")
AWK_CODE = re.compile(r"(?s)-[fiEl].*|--(file|include|exec|load).*|.*(system\s*\(|getline|[|>]\s*[\"(/]).*")
CODE = re.compile(r"-[A-Za-z]*[ceErp]|--eval.*|--print.*|--command.*|eval")
TELLING = re.compile(
    r"LD_.*|DYLD_.*|BASH_.*|ENV|PROMPT_COMMAND|PS[0-4]|PATH|IFS|SHELLOPTS|BASHOPTS|.*PAGER|.*EDITOR|VISUAL|LESS.*|GIT_.*"
    r"|PYTHON.*|PERL.*|RUBY.*|NODE_.*|npm_config_.*|CC|CXX|MAKEFLAGS|BROWSER|SHELL|HOME|XDG_.*|TAR_OPTIONS|RIPGREP_.*|ZDOTDIR|JAVA_.*|_JAVA.*"
)
"""Variables that make other programs run code."""
TELLING_OPTIONS = {
    "flock": re.compile(r"-[a-z]*c.*|--c.*"),
    "git": re.compile(
        r"-c.*|-O.*|.*(ext|fd)::.*|--(c(o(n(f.*)?)?)?|e(x([et].*)?)?|o(p(e.*)?)?|rec(e.*)?|t(e(m.*)?)?|u(p(l.*)?)?)(=.*)?"
    ),  # long options may be abbreviated
    "rg": re.compile(r"--pre.*|--hostname-bin.*"),
    "man": re.compile(r"-P.*|--pager.*|-H.*"),
    "runuser": re.compile(r"-[a-z]*c.*|--(session-)?c.*"),
    "rsync": re.compile(r"-e.*|--rsh.*|--rsync-path.*"),
    "scp": re.compile(r"-S.*|-o.*"),
    "sed": re.compile(r"-[a-zA-Z]*f.*|--file.*|(.*[;\d$/\s]|)e(\s.*|)|.*/[gpI\d]*e[gpI\d]*|(.*[;\d$/\s]|)[wr]\s.*"),
    "sort": re.compile(r"--compress-program.*"),
    "ssh": re.compile(r"-o.*|-F.*"),
    "tar": re.compile(r"--checkpoint-action.*|--to-command.*|-I.*|--use-compress-program.*|--rsh-command.*|-F.*"),
    "zip": re.compile(r"-TT.*|--unzip-command.*"),
}  # fmt: skip
GIT_COMMANDS = {
    "bisect": re.compile(r"run|vi.*|replay"),
    "clone": re.compile(r"-[a-z]*u.*"),
    "config": re.compile(r"-e|--edit|edit|(?!user\.(name|email)$)[\w-]+\..+"),
    "difftool": re.compile(r"-[a-z]*[xt].*|--tool.*"),
    "filter-branch": re.compile(r".*"),
    "for-each-repo": re.compile(r".*"),
    "mergetool": re.compile(r"-[a-z]*t.*|--tool.*"),
    "rebase": re.compile(r"-[a-zA-Z]*x.*"),
    "remote-ext": re.compile(r".*"),
    "shell": re.compile(r".*"),
    "submodule": re.compile(r"foreach"),
    "submodule--helper": re.compile(r"foreach"),
}
"""Words that make a command of `git` run code."""
GIT_READING = re.compile(r"(--(global|local|system|worktree) )*((--get|--list|-l|get|list)\b.*|[\w.-]+\.[\w-]+)")
"""What follows `git config` where it only reads."""
EDITORS = frozenset({"ed", "emacs", "ex", "gdb", "less", "more", "nvim", "rvim", "view", "vi", "vim"})
OUTPUTS = {"git": "--output", "sed": "-i --in-place", "sort": "-o --output", "tree": "-o", "yq": "-i --inplace"}
DECLARING = ("declare", "export", "local", "readonly", "typeset")
FILLING = ("getopts", "mapfile", "read", "readarray", "unset", "wait")
SCHEDULERS = frozenset(
    {
        "at", "batch", "bind", "compgen", "complete", "crontab", "enable", "entr", "expect", "fc", "hyperfine",
        "newgrp", "screen", "sg", "socat", "tmux",
    }
)  # fmt: skip
"""Commands that run code which they read, keep or get as text."""
PLAIN = frozenset(
    {
        "[", "[[", "((", "<", ">", "cat", "cd", "cmp", "cut", "diff", "dirname", "basename", "echo", "egrep", "exit",
        "export", "false", "fgrep", "function", "grep", "head", "jq", "let", "local", "ls", "mkdir", "printf", "pwd",
        "return", "rg", "sort", "tail", "test", "touch", "tr", "true", "uniq", "wc", "which",
    }
)  # fmt: skip
"""Commands that do not run their arguments. Any other may be a wrapper that we do not know."""
