//! Programs of Debian's packages, with work that they answer by the same line each time. A server's work is in testkit.

use super::lines::Lines;

/// One of them.
pub(super) struct Packaged {
    pub(super) name: &'static str,
    pub(super) package: &'static str,
    words: &'static [&'static str],
    first: &'static str,
    line: &'static str,
    pub(super) is_short: bool,
}

const fn long(
    name: &'static str,
    package: &'static str,
    words: &'static [&'static str],
    line: &'static str,
) -> Packaged {
    Packaged {
        name,
        package,
        words,
        first: "",
        line,
        is_short: false,
    }
}

const fn short(
    name: &'static str,
    package: &'static str,
    words: &'static [&'static str],
    line: &'static str,
) -> Packaged {
    Packaged {
        is_short: true,
        ..long(name, package, words, line)
    }
}

/// For each of Lua's versions.
const LUA: &str = "io.stdout:setvbuf('no') for l in io.lines() do local x = {} \
                   for i = 1, 500 do x[i] = l .. i end print(#x, 'ok') end";

pub(super) const PACKAGED: &[Packaged] = &[
    // Shells.
    short(
        "bash",
        "bash",
        &["bash"],
        "x=$(echo {1..99}); echo ${#x} ok\n",
    ),
    long(
        "dash",
        "dash",
        &["dash"],
        "x=$(echo one two); echo ${#x} ok\n",
    ),
    long(
        "busybox",
        "busybox",
        &["busybox", "sh"],
        "x=$(echo one two); echo ${#x} ok\n",
    ),
    long(
        "fish",
        "fish",
        &[
            "fish",
            "-c",
            "while read line; set x (string repeat -n 99 $line); echo (string length $x) ok; end",
        ],
        "abc\n",
    ),
    long(
        "ksh93",
        "ksh93u+m",
        &["ksh93"],
        "x=$(echo one two); echo ${#x} ok\n",
    ),
    long(
        "mksh",
        "mksh",
        &["mksh"],
        "x=$(echo one two); echo ${#x} ok\n",
    ),
    long(
        "posh",
        "posh",
        &["posh"],
        "x=$(echo one two); echo ${#x} ok\n",
    ),
    long("rc", "rc", &["rc"], "x=`{echo one two}; echo $#x ok\n"),
    long(
        "tcsh",
        "tcsh",
        &["tcsh", "-f"],
        "set x = `echo one two`; echo $#x ok\n",
    ),
    long(
        "yash",
        "yash",
        &["yash"],
        "x=$(echo one two); echo ${#x} ok\n",
    ),
    long(
        "zsh",
        "zsh",
        &["zsh", "-f"],
        "x=$(echo {1..99}); echo ${#x} ok\n",
    ),
    // Editors and filters.
    long("cat", "coreutils", &["cat"], "ok\n"),
    long("tee", "coreutils", &["tee"], "ok\n"),
    long(
        "stdbuf tr",
        "coreutils",
        &["stdbuf", "-oL", "tr", "a-z", "A-Z"],
        "ok\n",
    ),
    long("ed", "ed", &["ed", "-s"], "a\nok\n.\n1,$s/o/oo/\n1p\n1d\n"),
    long(
        "vim",
        "vim-tiny",
        &["vim.tiny", "-u", "NONE", "-es"],
        "s/.*/ok/|print\n",
    ),
    long(
        "grep",
        "grep",
        &["grep", "--line-buffered", "-P", "(o+)k"],
        "ooook\n",
    ),
    long("sed", "sed", &["sed", "-u", "s/\\(o*\\)k/\\1\\1k/"], "ok\n"),
    long(
        "gawk",
        "gawk",
        &[
            "gawk",
            "{ x = \"\"; for (i = 0; i < 500; i++) x = x i; print length(x), \"ok\"; fflush() }",
        ],
        "a\n",
    ),
    long(
        "mawk",
        "mawk",
        &[
            "mawk",
            "-W",
            "interactive",
            "{ x = \"\"; for (i = 0; i < 500; i++) x = x i; print length(x), \"ok\"; fflush() }",
        ],
        "a\n",
    ),
    long("m4", "m4", &["m4", "-i"], "define(`x', `$1$1')x(`ok')\n"),
    long(
        "jq",
        "jq",
        &["jq", "--unbuffered", "-c", "[range(200)] | add"],
        "1\n",
    ),
    short("socat", "socat", &["socat", "-", "EXEC:cat"], "ok\n"),
    // Calculators.
    long("bc", "bc", &["bc"], "2^4000 % 1000007\n"),
    long("dc", "dc", &["dc"], "2 4000 ^ 1000007 % p\n"),
    long("calc", "apcalc", &["calc", "-p"], "2^4000 % 1000007\n"),
    long(
        "gp",
        "pari-gp",
        &["gp", "-q", "-f"],
        "print(sum(i = 1, 500, i))\n",
    ),
    long("units", "units", &["units", "-t", "-q"], "3 km\nm\n"),
    long(
        "gnuplot",
        "gnuplot-nox",
        &["gnuplot"],
        "set print '-'; print sum [i=1:100] i\n",
    ),
    // Languages.
    short(
        "perl",
        "perl",
        &[
            "perl",
            "-ne",
            "$| = 1; my %x = map { $_ => [$_] } 1 .. 500; print scalar(keys %x), \" ok\\n\"",
        ],
        "a\n",
    ),
    short(
        "python3",
        "python3",
        &[
            "python3",
            "-uc",
            "import sys\nfor line in sys.stdin: print(len({str(i): [i] for i in range(500)}), 'ok')",
        ],
        "a\n",
    ),
    long(
        "ruby",
        "ruby",
        &[
            "ruby",
            "-ne",
            "$stdout.sync = true; puts \"#{(1..500).map(&:to_s).join.size} ok\"",
        ],
        "a\n",
    ),
    short("lua5.4", "lua5.4", &["lua5.4", "-e", LUA], "a\n"),
    long("lua5.1", "lua5.1", &["lua5.1", "-e", LUA], "a\n"),
    long("lua5.3", "lua5.3", &["lua5.3", "-e", LUA], "a\n"),
    long("luajit", "luajit", &["luajit", "-e", LUA], "a\n"),
    long(
        "node lines",
        "nodejs",
        &[
            "node",
            "-e",
            "require('readline').createInterface({input: process.stdin}).on('line', l => \
             console.log(Array.from({length: 500}, (_, i) => l + i).join('').length, 'ok'))",
        ],
        "a\n",
    ),
    short(
        "php",
        "php-cli",
        &[
            "php",
            "-r",
            "while (($l = fgets(STDIN)) !== false) { $x = []; for ($i = 0; $i < 500; $i++) $x[] = \"$l$i\"; \
             echo count($x), \" ok\\n\"; }",
        ],
        "a\n",
    ),
    short(
        "tclsh",
        "tcl",
        &["tclsh"],
        "set x {}; for {set i 0} {$i < 500} {incr i} {lappend x $i}; puts [llength $x]; flush stdout\n",
    ),
    long(
        "expect",
        "expect",
        &["expect", "-"],
        "set x {}; for {set i 0} {$i < 500} {incr i} {lappend x $i}; puts [llength $x]; flush stdout\n",
    ),
    short(
        "erlang",
        "erlang-base",
        &[
            "erl",
            "-noshell",
            "-eval",
            "F = fun(F) -> case io:get_line(\"\") of eof -> halt(0); _ -> io:format(\"~p ok~n\", \
             [lists:sum(lists:seq(1, 500))]), F(F) end end, F(F).",
        ],
        "a\n",
    ),
    long(
        "guile",
        "guile-3.0",
        &[
            "guile",
            "--no-auto-compile",
            "-c",
            "(use-modules (ice-9 rdelim)) (let loop ((l (read-line))) (if (not (eof-object? l)) (begin (display \
             (apply + (iota 500))) (newline) (force-output) (loop (read-line)))))",
        ],
        "a\n",
    ),
    long(
        "csi",
        "chicken-bin",
        &[
            "csi",
            "-n",
            "-q",
            "-e",
            "(import (chicken io)) (let loop ((l (read-line))) (if (not (eof-object? l)) (begin (display \
             (length (vector->list (make-vector 500)))) (newline) (flush-output) (loop (read-line)))))",
        ],
        "a\n",
    ),
    long(
        "ocaml",
        "ocaml-interp",
        &["ocaml", "-noprompt"],
        "let _ = List.fold_left (+) 0 (List.init 500 Fun.id);;\n",
    ),
    long(
        "ecl",
        "ecl",
        &[
            "ecl",
            "-norc",
            "-eval",
            "(progn (loop while (read-line *standard-input* nil) do (format t \"~a ok~%\" (length (make-list \
             500))) (finish-output)) (quit))",
        ],
        "a\n",
    ),
    long(
        "swipl",
        "swi-prolog-core-packages",
        &[
            "swipl",
            "-q",
            "-f",
            "none",
            "-g",
            "repeat, read_line_to_string(user_input, L), (L == end_of_file -> halt ; numlist(1, 500, X), \
             sum_list(X, S), writeln(S), flush_output, fail)",
        ],
        "a\n",
    ),
    long(
        "newlisp",
        "newlisp",
        &["newlisp"],
        "(apply + (sequence 1 500))\n",
    ),
    long(
        "elvish",
        "elvish",
        &[
            "elvish",
            "-norc",
            "-c",
            "from-lines | each {|l| echo (count [(range 500)]) ok }",
        ],
        "a\n",
    ),
    // Tools.
    long(
        "gdb",
        "gdb",
        &["gdb", "-q", "-nx"],
        "output 6 * 7\necho \\n\n",
    ),
    long(
        "sqlite3",
        "sqlite3",
        &["sqlite3", "-batch", ":memory:"],
        "with recursive n(i) as (select 1 union all select i + 1 from n where i < 500) select count(*), \
             group_concat(i) from n;\n",
    ),
    long(
        "git",
        "git",
        &["git", "hash-object", "--stdin-paths"],
        "/etc/hostname\n",
    ),
];

impl Packaged {
    pub(super) fn lines(&self) -> Lines {
        Lines {
            words: self.words.iter().map(|word| (*word).to_owned()).collect(),
            variable: None,
            first: self.first,
            line: self.line,
        }
    }
}
