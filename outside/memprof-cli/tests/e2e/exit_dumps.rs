//! `memprof run` of programs that end before the plugin would come: an exit with a config waits for it.

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::dist::dist;
use crate::memprof::Run;

/// A program that is sampled from its start, with these lines as the plugin's config.
fn short(place: &TempDir, config: &str, program: &[&str]) -> Run {
    let file = place.path().join("memprof.toml");
    let dumps = place.path().join("dumps");
    std::fs::write(&file, format!("dump_dir = {dumps:?}\n{config}")).unwrap();
    let mut command = Command::new(dist("bin/memprof"));
    command.args(["run", "--active", "--lg-sample", "10", "--config"]);
    command.arg(&file).arg("--").args(program);
    Run::from_command(command.env("MEMPROF_SOCKET_DIR", place.path()))
}

fn exit_dumps(place: &Path) -> usize {
    let Ok(files) = std::fs::read_dir(place.join("dumps")) else {
        return 0;
    };
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.contains(".at-exit.")).count()
}

#[test]
fn program_that_ends_at_once_leaves_its_dump_and_its_status() {
    let check = |program: &[&str], code, dumps| {
        let place = tempfile::tempdir().unwrap();
        let ended = short(&place, "[[watch]]\nat_exit = true\n", program).exits(code);
        assert_eq!(exit_dumps(place.path()), dumps, "{program:?}: {ended:?}");
        assert_eq!(ended.stdout, "", "{program:?}");
    };
    check(&["/bin/true"], 0, 1);
    check(&["/bin/bash", "-c", "exit 3"], 3, 1);
    // Forked children that end at once leave none.
    check(&["/bin/bash", "-c", "(exit 4); exit 2"], 2, 1);
    check(&["/usr/bin/perl", "-e", "close STDERR; exit 5"], 5, 1);
    // In a handler, on the program's own thread.
    let handler = "$SIG{ALRM} = sub { exit 6 }; kill ALRM => $$; 1 while 1";
    check(&["/usr/bin/perl", "-e", handler], 6, 1);
    check(&["/bin/sh", "-c", "/bin/true; /bin/true; :"], 0, 2);
    // dash ends by _exit(2).
    check(&["/bin/dash", "-c", "exit 3"], 3, 0);
    check(&["/bin/sh", "-c", "kill -9 $$"], -1, 0);
}

#[test]
fn wrong_config_of_a_program_that_ends_at_once_is_named() {
    let place = tempfile::tempdir().unwrap();
    let ended = short(&place, "[[watch]]\nat_exitt = true\n", &["/bin/true"]).exits(0);
    assert!(
        ended.stderr.contains("unknown field `at_exitt`"),
        "{ended:?}"
    );
    assert_eq!(exit_dumps(place.path()), 0);
}
