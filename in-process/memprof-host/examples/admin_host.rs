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

/// Starts the host of the config file CONFIG, and sends it the lines of standard input until their end.
fn serve() -> Result<(), Box<dyn Error>> {
    let path = std::env::args_os()
        .nth(1)
        .ok_or("usage: admin_host CONFIG")?;
    // `[server]` is this program's own table; it would be read by `toml::from_str`.
    let config = Config::read_beside(&PathBuf::from(path), &["server"])?;
    // Before the plugins are created: a refused one is only logged. The level is applied by the program alone.
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
