//! A host with a bus of its own: each line of standard input, `PLUGIN MESSAGE ARGUMENTS`, is sent to a plugin.

use std::error::Error;
use std::io::{BufRead, stdin};
use std::path::PathBuf;
use std::process::ExitCode;

use memprof_host::{Config, Host, HostProgram};

fn main() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("admin_host: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Starts the host of the config file that the first argument names. Then sends each line of standard input to a
/// plugin, and prints the reply, until the input ends.
fn serve() -> Result<(), Box<dyn Error>> {
    let path = std::env::args_os()
        .nth(1)
        .ok_or("usage: admin_host CONFIG")?;
    // The file may also contain the program's own table `[server]`. A real program would read it with `toml::from_str`.
    let config = Config::read_beside(&PathBuf::from(path), &["server"])?;
    // The logger must exist before the plugins are created, because a plugin that cannot be loaded is only logged. The
    // host does not apply the config's log level; the program does.
    env_logger::Builder::new()
        .filter_level(config.log.level()?)
        .init();
    let program = HostProgram::new("admin_host", env!("CARGO_PKG_VERSION"));
    let host = Host::start(&config, program)?;
    for line in stdin().lock().lines() {
        let line = line?;
        let mut words = line.splitn(3, ' ');
        let [plugin, message, args] = [(); 3].map(|()| words.next().unwrap_or_default());
        match host.message(plugin, message, args) {
            Ok(reply) => {
                let status = reply.status_code;
                println!("{status} {}", reply.into_text());
            }
            Err(unknown) => println!("{unknown}"),
        }
    }
    Ok(())
}
