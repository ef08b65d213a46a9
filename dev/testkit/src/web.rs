//! Servers of HTTP, and languages whose programs are some.

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
    names: "ngx_http_create_request",
    forks: None,
    command: |place| {
        let config = format!(
            "daemon off;\nuser www-data;\nworker_processes 1;\npid {0}/nginx.pid;\n\
             events {{ worker_connections 1024; }}\nhttp {{ access_log off;\n\
             client_body_temp_path {0}/body; proxy_temp_path {0}/proxy;\n\
             fastcgi_temp_path {0}/fastcgi; uwsgi_temp_path {0}/uwsgi; scgi_temp_path {0}/scgi;\n\
             server {{ listen 127.0.0.1:{1}; location / {{ return 200 \"hello\\n\"; }} }} }}\n",
            place.path().display(),
            place.port
        );
        let mut command = Command::new("/usr/sbin/nginx");
        command.args(["-e", "stderr", "-c"]);
        command.arg(place.write("nginx.conf", &config)?);
        Ok(command)
    },
    answer: hello,
    load: |running| hold(running, 300),
};

pub(crate) const HAPROXY: Server = Server {
    name: "haproxy",
    packages: &["haproxy"],
    user: User::Nobody,
    profiled: ProfiledProcess::Main,
    names: "haproxy",
    forks: None,
    command: |place| {
        // It forbids new threads to itself, ours too, unless it may fork.
        let config = format!(
            "global\nmaxconn 1000\ninsecure-fork-wanted\ndefaults\nmode http\ntimeout client 60s\n\
             timeout server 60s\ntimeout connect 5s\nfrontend f\nbind 127.0.0.1:{}\n\
             http-request return status 200 content-type text/plain string hello\n",
            place.port
        );
        let mut command = Command::new("/usr/sbin/haproxy");
        command.args(["-db", "-f"]);
        command.arg(place.write("haproxy.cfg", &config)?);
        Ok(command)
    },
    answer: hello,
    load: |running| hold(running, 300),
};

pub(crate) const APACHE: Server = Server {
    name: "apache worker",
    packages: &["apache2"],
    user: User::Starter,
    profiled: ProfiledProcess::Child("apache2"),
    names: "ap_invoke_handler",
    forks: None,
    command: |place| {
        let www = place.directory("www")?;
        place.write("www/index.html", "hello\n")?;
        place.write("www/grow.lua", include_str!("programs/grow.lua"))?;
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
            place.path().display(),
            place.port
        );
        let mut command = Command::new("/usr/sbin/apache2");
        command.args(["-DFOREGROUND", "-f"]);
        command.arg(place.write("apache.conf", &config)?);
        Ok(command)
    },
    answer: hello,
    // Its own pools are of mmap(2): what it allocates by malloc is its modules'.
    load: grow,
};

pub(crate) const VARNISH: Server = Server {
    name: "varnish",
    packages: &["varnish"],
    user: User::Starter,
    profiled: ProfiledProcess::Child("cache-main"),
    names: "VFP_GetStorage",
    forks: None,
    command: |place| {
        // Without a backend: its error page is kept as if it were one's answer.
        let body = "x".repeat(4000);
        let vcl = format!(
            "vcl 4.1;\nbackend default none;\nsub vcl_backend_fetch {{ return (error(200)); }}\n\
             sub vcl_backend_error {{ set beresp.status = 200; set beresp.ttl = 1h;\n\
             if (bereq.url ~ \"load\") {{ synthetic({{\"{body}\"}}); }} else {{ \
             synthetic(\"hello\"); }} return (deliver); }}\n"
        );
        let mut command = Command::new("/usr/sbin/varnishd");
        command.args(["-F", "-s", "malloc,64m", "-a"]);
        command.arg(format!("127.0.0.1:{}", place.port));
        command.arg("-n").arg(place.path().join("varnish"));
        command.arg("-f").arg(place.write("default.vcl", &vcl)?);
        Ok(command)
    },
    answer: hello,
    load: |running| {
        let (port, load) = (running.place().port, running.loads);
        (0..300).try_for_each(|number| http_get(port, &format!("/load/{load}/{number}")).map(drop))
    },
};

pub(crate) const PHP: Server = Server {
    name: "php -S",
    packages: &["php-cli"],
    user: User::Starter,
    profiled: ProfiledProcess::Main,
    names: "php",
    forks: None,
    command: |place| {
        let script = place.write("server.php", include_str!("programs/server.php"))?;
        let mut command = Command::new("/usr/bin/php");
        command.arg("-S").arg(format!("127.0.0.1:{}", place.port));
        command.arg(script);
        Ok(command)
    },
    answer: hello,
    load: |running| hold(running, 300),
};

pub(crate) const PYTHON: Server = Server {
    name: "python",
    packages: &["python3"],
    user: User::Starter,
    profiled: ProfiledProcess::Main,
    names: "_PyEval_EvalFrameDefault",
    forks: None,
    command: |place| {
        program(
            place,
            "/usr/bin/python3",
            "server.py",
            include_str!("programs/server.py"),
        )
    },
    answer: hello,
    load: grow,
};

pub(crate) const RUBY: Server = Server {
    name: "ruby",
    packages: &["ruby"],
    user: User::Starter,
    profiled: ProfiledProcess::Main,
    names: "rb_str",
    forks: None,
    command: |place| {
        program(
            place,
            "/usr/bin/ruby",
            "server.rb",
            include_str!("programs/server.rb"),
        )
    },
    answer: hello,
    load: grow,
};

pub(crate) const NODE: Server = Server {
    name: "node",
    packages: &["nodejs"],
    user: User::Starter,
    profiled: ProfiledProcess::Main,
    names: "node::NodeArrayBufferAllocator",
    forks: None,
    command: |place| {
        program(
            place,
            "/usr/bin/node",
            "server.js",
            include_str!("programs/server.js"),
        )
    },
    answer: hello,
    load: grow,
};

pub(crate) const JAVA: Server = Server {
    name: "java",
    packages: &["default-jdk-headless"],
    user: User::Starter,
    profiled: ProfiledProcess::Main,
    names: "Unsafe_AllocateMemory0",
    forks: None,
    command: |place| {
        let script = place.write("Server.java", include_str!("programs/Server.java"))?;
        let mut command = Command::new("/usr/bin/java");
        command.args(["-Xmx128m", "-XX:+UseSerialGC"]);
        command.arg(script).arg(place.port.to_string());
        Ok(command)
    },
    answer: hello,
    load: grow,
};

fn program(place: &ServerDir, interpreter: &str, name: &str, text: &str) -> Result<Command> {
    let mut command = Command::new(interpreter);
    command.arg(place.write(name, text)?);
    command.arg(place.port.to_string());
    Ok(command)
}

fn hello(running: &mut RunningServer) -> Result<String> {
    http_get(running.place().port, "/")
}

/// Has one of our programs fill its cache again.
fn grow(running: &mut RunningServer) -> Result<()> {
    http_get(running.place().port, "/grow").map(drop)
}

/// Holds connections that sent half a request.
fn hold(running: &mut RunningServer, count: usize) -> Result<()> {
    let filling = "x".repeat(6000);
    let beginning = format!("GET / HTTP/1.1\r\nHost: localhost\r\nX-Filling: {filling}\r\nX-Cut: ");
    running.held = HalfOpenConnections::default();
    running.held = HalfOpenConnections::open(running.place().port, count, beginning.as_bytes())?;
    // It is served after those that came before.
    running.query().map(drop)
}
