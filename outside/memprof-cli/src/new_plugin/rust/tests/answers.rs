//! Loads the plugin as a host does, and sends it messages.

use memprof_host::{Config, Host, HostProgram};

#[test]
fn plugin_answers_in_a_host() {
    // Cargo puts the library beside this test.
    let test = std::env::current_exe().unwrap();
    let library = test.with_file_name("libgreeter.so");
    let config = format!(
        "[control]\nsocket = \"off\"\n[[plugin]]\npath = {library:?}\n[plugin.config]\ngreeting = \"hi\"\n"
    );
    let config = Config::parse(&config).unwrap();
    let host = Host::start(&config, HostProgram::new("test", "")).unwrap();
    let check = |message: &str, args: &str, status: i32, text: &str| {
        let reply = host.message("greeter", message, args).unwrap();
        let answer = (reply.status_code, reply.into_text());
        assert_eq!(answer, (status, text.to_owned()), "{message} {args}");
    };
    check("greet", r#"name="Ada Lovelace""#, 0, "hi, Ada Lovelace");
    check("greet", "name=", -2, "the name is empty; send name=NAME");
    check("greet", "nmae=Ada", -2, "unknown argument \"nmae\"; valid arguments: name");
    check("greet", "", -2, "argument \"name\" is missing; send name=VALUE");
    check("count", "", 0, "1 greeted");
    check("leave", "", -1, "greeter has no message \"leave\"; valid messages: greet, count");
}
