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
const fn long_suite_variant(
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
        ..long_suite_variant(name, package, words, line)
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
    long_suite_variant(
        "dash",
        "dash",
        &["dash"],
        "x=$(echo one two); echo ${#x} ok\n",
    ),
    long_suite_variant(
        "busybox",
        "busybox",
        &["busybox", "sh"],
        "x=$(echo one two); echo ${#x} ok\n",
    ),
    long_suite_variant(
        "fish",
        "fish",
        &[
            "fish",
            "-c",
            "while read line; set x (string repeat -n 99 $line); echo (string length $x) ok; end",
        ],
        "abc\n",
    ),
    long_suite_variant(
        "ksh93",
        "ksh93u+m",
        &["ksh93"],
        "x=$(echo one two); echo ${#x} ok\n",
    ),
    long_suite_variant(
        "mksh",
        "mksh",
        &["mksh"],
        "x=$(echo one two); echo ${#x} ok\n",
    ),
    long_suite_variant(
        "posh",
        "posh",
        &["posh"],
        "x=$(echo one two); echo ${#x} ok\n",
    ),
    long_suite_variant("rc", "rc", &["rc"], "x=`{echo one two}; echo $#x ok\n"),
    long_suite_variant(
        "tcsh",
        "tcsh",
        &["tcsh", "-f"],
        "set x = `echo one two`; echo $#x ok\n",
    ),
    long_suite_variant(
        "yash",
        "yash",
        &["yash"],
        "x=$(echo one two); echo ${#x} ok\n",
    ),
    long_suite_variant(
        "zsh",
        "zsh",
        &["zsh", "-f"],
        "x=$(echo {1..99}); echo ${#x} ok\n",
    ),
    // Editors and filters.
    long_suite_variant("cat", "coreutils", &["cat"], "ok\n"),
    long_suite_variant("tee", "coreutils", &["tee"], "ok\n"),
    long_suite_variant(
        "stdbuf tr",
        "coreutils",
        &["stdbuf", "-oL", "tr", "a-z", "A-Z"],
        "ok\n",
    ),
    long_suite_variant("ed", "ed", &["ed", "-s"], "a\nok\n.\n1,$s/o/oo/\n1p\n1d\n"),
    long_suite_variant(
        "vim",
        "vim-tiny",
        &["vim.tiny", "-u", "NONE", "-es"],
        "s/.*/ok/|print\n",
    ),
    long_suite_variant(
        "grep",
        "grep",
        &["grep", "--line-buffered", "-P", "(o+)k"],
        "ooook\n",
    ),
    long_suite_variant("sed", "sed", &["sed", "-u", "s/\\(o*\\)k/\\1\\1k/"], "ok\n"),
    long_suite_variant(
        "gawk",
        "gawk",
        &[
            "gawk",
            "{ x = \"\"; for (i = 0; i < 500; i++) x = x i; print length(x), \"ok\"; fflush() }",
        ],
        "a\n",
    ),
    long_suite_variant(
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
    long_suite_variant("m4", "m4", &["m4", "-i"], "define(`x', `$1$1')x(`ok')\n"),
    long_suite_variant(
        "jq",
        "jq",
        &["jq", "--unbuffered", "-c", "[range(200)] | add"],
        "1\n",
    ),
    in_both_suites("socat", "socat", &["socat", "-", "EXEC:cat"], "ok\n"),
    // Calculators.
    long_suite_variant("bc", "bc", &["bc"], "2^4000 % 1000007\n"),
    long_suite_variant("dc", "dc", &["dc"], "2 4000 ^ 1000007 % p\n"),
    long_suite_variant("calc", "apcalc", &["calc", "-p"], "2^4000 % 1000007\n"),
    long_suite_variant(
        "gp",
        "pari-gp",
        &["gp", "-q", "-f"],
        "print(sum(i = 1, 500, i))\n",
    ),
    long_suite_variant("units", "units", &["units", "-t", "-q"], "3 km\nm\n"),
    long_suite_variant(
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
    long_suite_variant(
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
    long_suite_variant("lua5.1", "lua5.1", &["lua5.1", "-e", LUA], "a\n"),
    long_suite_variant("lua5.3", "lua5.3", &["lua5.3", "-e", LUA], "a\n"),
    long_suite_variant("luajit", "luajit", &["luajit", "-e", LUA], "a\n"),
    long_suite_variant(
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
    long_suite_variant(
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
    long_suite_variant(
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
    long_suite_variant(
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
    long_suite_variant(
        "ocaml",
        "ocaml-interp",
        &["ocaml", "-noprompt"],
        "let _ = List.fold_left (+) 0 (List.init 500 Fun.id);;\n",
    ),
    long_suite_variant(
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
    long_suite_variant(
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
    long_suite_variant(
        "newlisp",
        "newlisp",
        &["newlisp"],
        "(apply + (sequence 1 500))\n",
    ),
    long_suite_variant(
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
    long_suite_variant(
        "gdb",
        "gdb",
        &["gdb", "-q", "-nx"],
        "output 6 * 7\necho \\n\n",
    ),
    long_suite_variant(
        "sqlite3",
        "sqlite3",
        &["sqlite3", "-batch", ":memory:"],
        "with recursive n(i) as (select 1 union all select i + 1 from n where i < 500) select count(*), \
             group_concat(i) from n;\n",
    ),
    long_suite_variant(
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
