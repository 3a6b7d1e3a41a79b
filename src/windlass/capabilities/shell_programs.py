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
    "xvfb-run": Wrapper("-e -f -n -p -s -w"),
    "valgrind": Wrapper(),
    "uclampset": Wrapper("-m -M -p"),
    "toybox": Wrapper(),
    "systemd-inhibit": Wrapper("--what --who --why --mode"),
    "ssh-agent": Wrapper("-a -E -P -t"),
    "proot": Wrapper("-r -b -w -q -R -S"),
    "prlimit": Wrapper("-p --pid -o --output"),
    "numactl": Wrapper("-N --cpunodebind -m --membind -C --physcpubind -i --interleave -p --preferred"),
    "faketime": Wrapper("-f", skip=1),
    "fakeroot": Wrapper("-l --lib --faked -i -s -b"),
    "eatmydata": Wrapper(clear=""),
    "dbus-run-session": Wrapper("--config-file --dbus-daemon"),
    "choom": Wrapper("-n --adjust -p --pid"),
    "cgexec": Wrapper("-g"),
    "catchsegv": Wrapper(clear=""),
    "aa-exec": Wrapper("-p --profile"),
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
    "ld.so": Wrapper("--library-path --preload --audit --argv0 --inhibit-rpath --glibc-hwcaps-prepend"),
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

SHELLS = frozenset(
    {
        "ash", "bash", "csh", "dash", "elvish", "fish", "hush", "ksh", "ksh93", "lksh", "mksh", "nu", "osh", "pdksh",
        "posh", "rbash", "rzsh", "sash", "sh", "tcsh", "xonsh", "yash", "zsh",
    }
)  # fmt: skip
LOADER = re.compile(r"ld(-linux|-musl)?[\w.-]*\.so(\.\d+)?")
EXECS = frozenset({"-exec", "-execdir", "-ok", "-okdir"})
INLINE = re.compile(r"(python|pypy|perl|ruby|node|nodejs|deno|bun|php|lua|luajit|tclsh|osascript|pwsh|Rscript)[\d.]*")
AWK = re.compile(r"[gmn]?awk")
CODE = re.compile(r"-[A-Za-z]*[ceErp]|--eval.*|--print.*|--command.*|eval")
TELLING = re.compile(
    r"LD_.*|DYLD_.*|BASH_.*|ENV|PROMPT_COMMAND|PS[0-4]|PATH|IFS|SHELLOPTS|BASHOPTS|.*PAGER|.*EDITOR|VISUAL|LESS.*|GIT_.*"
    r"|PYTHON.*|PERL.*|RUBY.*|NODE_.*|npm_config_.*|CC|CXX|MAKEFLAGS|BROWSER|SHELL|HOME|XDG_.*|TAR_OPTIONS|RIPGREP_.*|ZDOTDIR|JAVA_.*|_JAVA.*"
    r"|MAN(OPT|PATH)|.*_RSH|.*ASKPASS|.*_WRAPPER|RUSTC.*|RUSTFLAGS|CARGO_(HOME|BUILD|TARGET|ALIAS).*|GOFLAGS|GO(ROOT|PATH|ENV)|GCONV_PATH|GLIBC_TUNABLES"
    r"|OPENSSL_.*|TERMINFO.*|.*_OPTS|FZF_.*|DOCKER_(HOST|CONFIG|CONTEXT)|KUBECONFIG|AWS_.*_FILE|LOCPATH|NLSPATH|HOSTALIASES"
)
"""Variables that make other programs run code."""
_COMPILER = re.compile(r"-wrapper.*|-fplugin.*|-B.*|-Xclang|-load|-specs.*|@.*|-Wl,.*plugin.*")
TELLING_OPTIONS = {
    "ag": re.compile(r"--pager.*"),
    "capsh": re.compile(r"--|=="),
    "cargo": re.compile(r"--config.*"),
    "cc": _COMPILER,
    "clang": _COMPILER,
    "clang++": _COMPILER,
    "cpio": re.compile(r"--rs.*"),
    "curl": re.compile(r"-[a-zA-Z]*K.*|--conf.*"),
    "flock": re.compile(r"-[a-z]*c.*|--c.*"),
    "git": re.compile(
        r"-c.*|-O.*|.*(ext|fd)::.*|--(c(o(n(f.*)?)?)?|e(x([et].*)?)?|o(p(e.*)?)?|rec(e.*)?|t(e(m.*)?)?|u(p(l.*)?)?)(=.*)?"
    ),  # long options may be abbreviated
    "g++": _COMPILER,
    "gcc": _COMPILER,
    "go": re.compile(r"--?(exec|toolexec|vettool)(=.*)?"),
    "gpg": re.compile(r"--(exec-path|photo-viewer|.*-program|load-ext).*"),
    "gradle": re.compile(r"-I.*|--init-script.*"),
    "ld": re.compile(r"--?plugin.*"),
    "make": re.compile(r"--ev.*|-E.*|SHELL[:+?]*=.*|.*\$\(.*|.*!=.*"),
    "man": re.compile(r"-[a-zA-Z]*[PH].*|--(pag|htm|bro).*"),
    "mysql": re.compile(r"(?s).*(\\!|\bsystem\b|--pager|--init-command).*"),
    "nmap": re.compile(r"--script.*"),
    "node": re.compile(r"-r.*|--(require|import|loader|experimental-loader|env-file).*"),
    "npm": re.compile(r"-c|--call.*|--script-shell.*|--node-options.*|--shell.*"),
    "openssl": re.compile(r"--?(engine|provider).*|engine"),
    "psql": re.compile(r"(?is).*(\\!|\\(g|copy|o|w|i)\b|\bprogram\b).*|-[a-zA-Z]*[fo].*|--(file|output).*"),
    "pytest": re.compile(r"-p.*|--pdbcls.*|--rootdir.*|--confcutdir.*|-c.*|--config-file.*|-o.*|--override-ini.*"),
    "rg": re.compile(r"--pre.*|--hostname-bin.*"),
    "runuser": re.compile(r"-[a-z]*c.*|--(session-)?c.*"),
    "rsync": re.compile(r"-[a-zA-Z]*[eM].*|--(rsh|rsync-path|remote-option|daemon|config).*"),
    "scp": re.compile(r"-[a-zA-Z]*[SoFD].*"),
    "sftp": re.compile(r"-[a-zA-Z]*[SoFDb].*"),
    "sort": re.compile(r"--co.*"),
    "sqlite3": re.compile(r"(?is)\s*\.\w.*|.*\n\s*\.\w.*|.*(load_extension|writefile|edit\s*\().*|-(cmd|init).*"),
    "ssh": re.compile(r"-[a-zA-Z0-9]*[oFIE].*"),
    "ssh-add": re.compile(r"-[a-zA-Z]*[sS].*"),
    "ssh-keygen": re.compile(r"-[a-zA-Z]*[Dw].*"),
    "strace": re.compile(r"-[a-zA-Z]*o[|!].*|[|!].*|--output=[|!].*"),
    "tar": re.compile(r"-[A-Za-z]*[IF].*|--(checkpoint-|to-c|us|info|new-v|rs|rm).*"),
    "tcpdump": re.compile(r"-[a-zA-Z]*z.*|--postrotate.*"),
    "wget": re.compile(r"-[a-zA-Z]*[ei].*|--(use-a|exe|conf|inp|post-f|body-f).*"),
    "zip": re.compile(r"-[a-zA-Z]*TT.*|--unzip-command.*"),
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
    "send-email": re.compile(r"--(sendmail-cmd|smtp-server|to-cmd|cc-cmd|header-cmd).*"),
    "daemon": re.compile(r"--access-hook.*"),
    "help": re.compile(r"-[a-z]*w.*|--web"),
    "hook": re.compile(r"run"),
    "instaweb": re.compile(r".*"),
    "submodule--helper": re.compile(r"foreach"),
    "web--browse": re.compile(r".*"),
}
"""Words that make a command of `git` run code."""
GIT_READING = re.compile(r"(--(global|local|system|worktree) )*((--get|--list|-l|get|list)\b.*|[\w.-]+\.[\w-]+)")
"""What follows `git config` where it only reads."""
EDITORS = frozenset({"ed", "emacs", "ex", "gdb", "less", "more", "nvim", "rvim", "view", "vi", "vim"})
OUTPUTS = {
    "curl": "-o --output -O --remote-name --remote-name-all -D --dump-header -c --cookie-jar --trace --trace-ascii",
    "wget": "-O --output-document -o --output-file -a --append-output",
    "git": "--output",
    "sed": "-i --in-place",
    "sort": "-o --output",
    "tree": "-o",
    "yq": "-i --inplace",
}
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
