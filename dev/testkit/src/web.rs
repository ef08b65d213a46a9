//! HTTP servers, and interpreters that run a small HTTP server.

use std::process::Command;

use anyhow::Result;

use crate::half_open::HalfOpenConnections;
use crate::net_client::http_get;
use crate::server::RunningServer;
use crate::server::{ProfiledProcess, Server};
use crate::server_dir::ServerDir;
use crate::server_dir::User;

pub(crate) const NGINX: Server = Server {
    name: "nginx worker",
    packages: &["nginx"],
    user: User::Starter,
    profiled: ProfiledProcess::Child("nginx: worker"),
    load_symbol: "ngx_http_create_request",
    fork: None,
    command: |dir| {
        let config = format!(
            "daemon off;\nuser www-data;\nworker_processes 1;\npid {0}/nginx.pid;\n\
             events {{ worker_connections 1024; }}\nhttp {{ access_log off;\n\
             client_body_temp_path {0}/body; proxy_temp_path {0}/proxy;\n\
             fastcgi_temp_path {0}/fastcgi; uwsgi_temp_path {0}/uwsgi; scgi_temp_path {0}/scgi;\n\
             server {{ listen 127.0.0.1:{1}; location / {{ return 200 \"hello\\n\"; }} }} }}\n",
            dir.path().display(),
            dir.port
        );
        let mut command = Command::new("/usr/sbin/nginx");
        command.args(["-e", "stderr", "-c"]);
        command.arg(dir.write_file("nginx.conf", &config)?);
        Ok(command)
    },
    query: get_root,
    load: |running| replace_half_open_connections(running, 300),
};

pub(crate) const HAPROXY: Server = Server {
    name: "haproxy",
    packages: &["haproxy"],
    user: User::Unprivileged,
    profiled: ProfiledProcess::Main,
    load_symbol: "haproxy",
    fork: None,
    command: |dir| {
        // HAProxy forbids itself new threads, memprof's included, unless it may fork.
        let config = format!(
            "global\nmaxconn 1000\ninsecure-fork-wanted\ndefaults\nmode http\ntimeout client 60s\n\
             timeout server 60s\ntimeout connect 5s\nfrontend f\nbind 127.0.0.1:{}\n\
             http-request return status 200 content-type text/plain string hello\n",
            dir.port
        );
        let mut command = Command::new("/usr/sbin/haproxy");
        command.args(["-db", "-f"]);
        command.arg(dir.write_file("haproxy.cfg", &config)?);
        Ok(command)
    },
    query: get_root,
    load: |running| replace_half_open_connections(running, 300),
};

pub(crate) const APACHE: Server = Server {
    name: "apache worker",
    packages: &["apache2"],
    user: User::Starter,
    profiled: ProfiledProcess::Child("apache2"),
    load_symbol: "ap_invoke_handler",
    fork: None,
    command: |dir| {
        let www = dir.create_subdir("www")?;
        dir.write_file("www/index.html", "hello\n")?;
        dir.write_file("www/grow.lua", include_str!("programs/grow.lua"))?;
        let config = format!(
            "ServerRoot {0}\nPidFile {0}/apache.pid\nListen 127.0.0.1:{1}\nServerName localhost\n\
             LoadModule mpm_event_module /usr/lib/apache2/modules/mod_mpm_event.so\n\
             LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so\n\
             LoadModule dir_module /usr/lib/apache2/modules/mod_dir.so\n\
             LoadModule lua_module /usr/lib/apache2/modules/mod_lua.so\n\
             LuaScope server 1 1\nLuaMapHandler /grow {www}/grow.lua handle\n\
             User www-data\nGroup www-data\nErrorLog {0}/error.log\nDocumentRoot {www}\n\
             DirectoryIndex index.html\nStartServers 1\nServerLimit 1\nThreadsPerChild 64\n\
             MaxRequestWorkers 64\n",
            dir.path().display(),
            dir.port
        );
        let mut command = Command::new("/usr/sbin/apache2");
        command.args(["-DFOREGROUND", "-f"]);
        command.arg(dir.write_file("apache.conf", &config)?);
        Ok(command)
    },
    query: get_root,
    // Apache's pools come from mmap(2); only its modules call malloc.
    load: fill_cache,
};

pub(crate) const VARNISH: Server = Server {
    name: "varnish",
    packages: &["varnish"],
    user: User::Starter,
    profiled: ProfiledProcess::Child("cache-main"),
    load_symbol: "VFP_GetStorage",
    fork: None,
    command: |dir| {
        // No backend: Varnish caches the synthetic error page like a backend's response.
        let body = "x".repeat(4000);
        let vcl = format!(
            "vcl 4.1;\nbackend default none;\nsub vcl_backend_fetch {{ return (error(200)); }}\n\
             sub vcl_backend_error {{ set beresp.status = 200; set beresp.ttl = 1h;\n\
             if (bereq.url ~ \"load\") {{ synthetic({{\"{body}\"}}); }} else {{ \
             synthetic(\"hello\"); }} return (deliver); }}\n"
        );
        let mut command = Command::new("/usr/sbin/varnishd");
        command.args(["-F", "-s", "malloc,64m", "-a"]);
        command.arg(format!("127.0.0.1:{}", dir.port));
        command.arg("-n").arg(dir.path().join("varnish"));
        command.arg("-f").arg(dir.write_file("default.vcl", &vcl)?);
        Ok(command)
    },
    query: get_root,
    load: |running| {
        let (port, load) = (running.dir().port, running.loads);
        (0..300).try_for_each(|number| http_get(port, &format!("/load/{load}/{number}")).map(drop))
    },
};

pub(crate) const PHP: Server = Server {
    name: "php -S",
    packages: &["php-cli"],
    user: User::Starter,
    profiled: ProfiledProcess::Main,
    load_symbol: "php",
    fork: None,
    command: |dir| {
        let script = dir.write_file("server.php", include_str!("programs/server.php"))?;
        let mut command = Command::new("/usr/bin/php");
        command.arg("-S").arg(format!("127.0.0.1:{}", dir.port));
        command.arg(script);
        Ok(command)
    },
    query: get_root,
    load: |running| replace_half_open_connections(running, 300),
};

pub(crate) const PYTHON: Server = Server {
    name: "python",
    packages: &["python3"],
    user: User::Starter,
    profiled: ProfiledProcess::Main,
    load_symbol: "Handler.do_GET",
    fork: None,
    command: |dir| {
        interpreter_command(
            dir,
            "/usr/bin/python3",
            "server.py",
            include_str!("programs/server.py"),
        )
    },
    query: get_root,
    load: fill_cache,
};

pub(crate) const RUBY: Server = Server {
    name: "ruby",
    packages: &["ruby"],
    user: User::Starter,
    profiled: ProfiledProcess::Main,
    load_symbol: "rb_str",
    fork: None,
    command: |dir| {
        interpreter_command(
            dir,
            "/usr/bin/ruby",
            "server.rb",
            include_str!("programs/server.rb"),
        )
    },
    query: get_root,
    load: fill_cache,
};

pub(crate) const NODE: Server = Server {
    name: "node",
    packages: &["nodejs"],
    user: User::Starter,
    profiled: ProfiledProcess::Main,
    load_symbol: "node::NodeArrayBufferAllocator",
    fork: None,
    command: |dir| {
        interpreter_command(
            dir,
            "/usr/bin/node",
            "server.js",
            include_str!("programs/server.js"),
        )
    },
    query: get_root,
    load: fill_cache,
};

pub(crate) const JAVA: Server = Server {
    name: "java",
    packages: &["default-jdk-headless"],
    user: User::Starter,
    profiled: ProfiledProcess::Main,
    load_symbol: "Unsafe_AllocateMemory0",
    fork: None,
    command: |dir| {
        let script = dir.write_file("Server.java", include_str!("programs/Server.java"))?;
        let mut command = Command::new("/usr/bin/java");
        command.args(["-Xmx128m", "-XX:+UseSerialGC"]);
        command.arg(script).arg(dir.port.to_string());
        Ok(command)
    },
    query: get_root,
    load: fill_cache,
};

/// Writes a program into the directory, and returns the command that runs it by `interpreter`, with the port as its
/// argument.
fn interpreter_command(
    dir: &ServerDir,
    interpreter: &str,
    name: &str,
    text: &str,
) -> Result<Command> {
    let mut command = Command::new(interpreter);
    command.arg(dir.write_file(name, text)?);
    command.arg(dir.port.to_string());
    Ok(command)
}

/// Requests `/` over HTTP, and returns the status line and the body. Fails unless the status is 200.
fn get_root(running: &mut RunningServer) -> Result<String> {
    http_get(running.dir().port, "/")
}

/// Makes a server that runs one of this crate's programs replace its cache, of some MB, by a new one.
fn fill_cache(running: &mut RunningServer) -> Result<()> {
    http_get(running.dir().port, "/grow").map(drop)
}

/// Replaces the half-open connections by `count` new ones, each with an unfinished request of 6 kB, so that the server
/// keeps their buffers until the next load.
fn replace_half_open_connections(running: &mut RunningServer, count: usize) -> Result<()> {
    let filling = "x".repeat(6000);
    let beginning = format!("GET / HTTP/1.1\r\nHost: localhost\r\nX-Filling: {filling}\r\nX-Cut: ");
    running.half_open = HalfOpenConnections::default();
    running.half_open = HalfOpenConnections::open(running.dir().port, count, beginning.as_bytes())?;
    // A reply shows that the server has read the connections before it.
    running.query().map(drop)
}
