//! Programs of Debian's packages, with work that they answer by the same line each time. A server's work is in testkit.

use super::lines::Lines;

/// A program of a package, and its work.
pub(super) struct Packaged {
    pub(super) name: &'static str,
    pub(super) package: &'static str,
    words: &'static [&'static str],
    first: &'static str,
    line: &'static str,
    pub(super) is_short: bool,
}

/// A program that only the long suite runs.
const fn in_long_suite(
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

/// A program that the short suite runs, too.
const fn in_both_suites(
    name: &'static str,
    package: &'static str,
    words: &'static [&'static str],
    line: &'static str,
) -> Packaged {
    Packaged {
        is_short: true,
        ..in_long_suite(name, package, words, line)
    }
}

/// Script for every version of Lua.
const LUA: &str = "io.stdout:setvbuf('no') for l in io.lines() do local x = {} \
                   for i = 1, 500 do x[i] = l .. i end print(#x, 'ok') end";

pub(super) const PACKAGED: &[Packaged] = &[
    // Shells.
    in_both_suites(
        "bash",
        "bash",
        &["bash"],
        "x=$(echo {1..99}); echo ${#x} ok\n",
    ),
    in_long_suite(
        "dash",
        "dash",
        &["dash"],
        "x=$(echo one two); echo ${#x} ok\n",
    ),
    in_long_suite(
        "busybox",
        "busybox",
        &["busybox", "sh"],
        "x=$(echo one two); echo ${#x} ok\n",
    ),
    in_long_suite(
        "fish",
        "fish",
        &[
            "fish",
            "-c",
            "while read line; set x (string repeat -n 99 $line); echo (string length $x) ok; end",
        ],
        "abc\n",
    ),
    in_long_suite(
        "ksh93",
        "ksh93u+m",
        &["ksh93"],
        "x=$(echo one two); echo ${#x} ok\n",
    ),
    in_long_suite(
        "mksh",
        "mksh",
        &["mksh"],
        "x=$(echo one two); echo ${#x} ok\n",
    ),
    in_long_suite(
        "posh",
        "posh",
        &["posh"],
        "x=$(echo one two); echo ${#x} ok\n",
    ),
    in_long_suite("rc", "rc", &["rc"], "x=`{echo one two}; echo $#x ok\n"),
    in_long_suite(
        "tcsh",
        "tcsh",
        &["tcsh", "-f"],
        "set x = `echo one two`; echo $#x ok\n",
    ),
    in_long_suite(
        "yash",
        "yash",
        &["yash"],
        "x=$(echo one two); echo ${#x} ok\n",
    ),
    in_long_suite(
        "zsh",
        "zsh",
        &["zsh", "-f"],
        "x=$(echo {1..99}); echo ${#x} ok\n",
    ),
    // Editors and filters.
    in_long_suite("cat", "coreutils", &["cat"], "ok\n"),
    in_long_suite("tee", "coreutils", &["tee"], "ok\n"),
    in_long_suite(
        "stdbuf tr",
        "coreutils",
        &["stdbuf", "-oL", "tr", "a-z", "A-Z"],
        "ok\n",
    ),
    in_long_suite("ed", "ed", &["ed", "-s"], "a\nok\n.\n1,$s/o/oo/\n1p\n1d\n"),
    in_long_suite(
        "vim",
        "vim-tiny",
        &["vim.tiny", "-u", "NONE", "-es"],
        "s/.*/ok/|print\n",
    ),
    in_long_suite(
        "grep",
        "grep",
        &["grep", "--line-buffered", "-P", "(o+)k"],
        "ooook\n",
    ),
    in_long_suite("sed", "sed", &["sed", "-u", "s/\\(o*\\)k/\\1\\1k/"], "ok\n"),
    in_long_suite(
        "gawk",
        "gawk",
        &[
            "gawk",
            "{ x = \"\"; for (i = 0; i < 500; i++) x = x i; print length(x), \"ok\"; fflush() }",
        ],
        "a\n",
    ),
    in_long_suite(
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
    in_long_suite("m4", "m4", &["m4", "-i"], "define(`x', `$1$1')x(`ok')\n"),
    in_long_suite(
        "jq",
        "jq",
        &["jq", "--unbuffered", "-c", "[range(200)] | add"],
        "1\n",
    ),
    in_both_suites("socat", "socat", &["socat", "-", "EXEC:cat"], "ok\n"),
    // Calculators.
    in_long_suite("bc", "bc", &["bc"], "2^4000 % 1000007\n"),
    in_long_suite("dc", "dc", &["dc"], "2 4000 ^ 1000007 % p\n"),
    in_long_suite("calc", "apcalc", &["calc", "-p"], "2^4000 % 1000007\n"),
    in_long_suite(
        "gp",
        "pari-gp",
        &["gp", "-q", "-f"],
        "print(sum(i = 1, 500, i))\n",
    ),
    in_long_suite("units", "units", &["units", "-t", "-q"], "3 km\nm\n"),
    in_long_suite(
        "gnuplot",
        "gnuplot-nox",
        &["gnuplot"],
        "set print '-'; print sum [i=1:100] i\n",
    ),
    // Languages.
    in_both_suites(
        "perl",
        "perl",
        &[
            "perl",
            "-ne",
            "$| = 1; my %x = map { $_ => [$_] } 1 .. 500; print scalar(keys %x), \" ok\\n\"",
        ],
        "a\n",
    ),
    in_both_suites(
        "python3",
        "python3",
        &[
            "python3",
            "-uc",
            "import sys\nfor line in sys.stdin: print(len({str(i): [i] for i in range(500)}), 'ok')",
        ],
        "a\n",
    ),
    in_long_suite(
        "ruby",
        "ruby",
        &[
            "ruby",
            "-ne",
            "$stdout.sync = true; puts \"#{(1..500).map(&:to_s).join.size} ok\"",
        ],
        "a\n",
    ),
    in_both_suites("lua5.4", "lua5.4", &["lua5.4", "-e", LUA], "a\n"),
    in_long_suite("lua5.1", "lua5.1", &["lua5.1", "-e", LUA], "a\n"),
    in_long_suite("lua5.3", "lua5.3", &["lua5.3", "-e", LUA], "a\n"),
    in_long_suite("luajit", "luajit", &["luajit", "-e", LUA], "a\n"),
    in_long_suite(
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
    in_both_suites(
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
    in_both_suites(
        "tclsh",
        "tcl",
        &["tclsh"],
        "set x {}; for {set i 0} {$i < 500} {incr i} {lappend x $i}; puts [llength $x]; flush stdout\n",
    ),
    in_long_suite(
        "expect",
        "expect",
        &["expect", "-"],
        "set x {}; for {set i 0} {$i < 500} {incr i} {lappend x $i}; puts [llength $x]; flush stdout\n",
    ),
    in_both_suites(
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
    in_long_suite(
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
    in_long_suite(
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
    in_long_suite(
        "ocaml",
        "ocaml-interp",
        &["ocaml", "-noprompt"],
        "let _ = List.fold_left (+) 0 (List.init 500 Fun.id);;\n",
    ),
    in_long_suite(
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
    in_long_suite(
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
    in_long_suite(
        "newlisp",
        "newlisp",
        &["newlisp"],
        "(apply + (sequence 1 500))\n",
    ),
    in_long_suite(
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
    in_long_suite(
        "gdb",
        "gdb",
        &["gdb", "-q", "-nx"],
        "output 6 * 7\necho \\n\n",
    ),
    in_long_suite(
        "sqlite3",
        "sqlite3",
        &["sqlite3", "-batch", ":memory:"],
        "with recursive n(i) as (select 1 union all select i + 1 from n where i < 500) select count(*), \
             group_concat(i) from n;\n",
    ),
    in_long_suite(
        "git",
        "git",
        &["git", "hash-object", "--stdin-paths"],
        "/etc/hostname\n",
    ),
];

impl Packaged {
    /// Returns the command that starts the program, and the line to which it replies.
    pub(super) fn lines(&self) -> Lines {
        Lines {
            words: self.words.iter().map(|word| (*word).to_owned()).collect(),
            variable: None,
            first: self.first,
            line: self.line,
        }
    }
}
