//! The commands of the pages of hosts, with the servers that they name, each in a system of its own.

use crate::dist::source;
use crate::typed::{System, blocks, stand_in, type_in};

/// A page of hosts-examples.
struct Page {
    name: &'static str,
    /// Commands that a reader has run before: mostly, starting the server as its unit does.
    before: &'static str,
    /// Texts of the page, and their replacements here.
    stand_ins: &'static [(&'static str, &'static str)],
}

const fn page(name: &'static str) -> Page {
    Page {
        name,
        before: "",
        stand_ins: &[],
    }
}

const PAGES: &[Page] = &[
    page("ffi"),
    page("lua"),
    Page {
        name: "node",
        before: "
            pid 4711; node -e 'console.log(1); setInterval(() => {}, 1000)' > running &
            until [ -s running ]; do sleep 0.1; done",
        stand_ins: &[],
    },
    page("python"),
    page("ruby"),
    Page {
        name: "java",
        before: "
            echo 'class Sleep { public static void main(String[] words) throws Exception {
                System.out.println(1); Thread.sleep(600000); } }' > Sleep.java
            pid 4711; java Sleep.java > running &
            until [ -s running ]; do sleep 0.1; done",
        stand_ins: &[],
    },
    Page {
        name: "redis",
        before: "
            redis-server() { setpriv --reuid=redis --regid=redis --init-groups redis-server \"$@\"; }",
        stand_ins: &[
            ("/var/lib/redis/heap\n", "/var/lib/redis/heap & until redis-cli ping; do sleep 0.1; done\n"),
            ("redis-cli MEMORY_PROFILE dump", "
                head -c 8000000 /dev/zero | redis-cli -x SET key
                redis-cli MEMORY_PROFILE dump"),
        ],
    },
    Page {
        name: "mosquitto",
        before: "
            cp memprof.conf /etc/mosquitto/conf.d
            install -d -o mosquitto /run/mosquitto /var/log/mosquitto",
        stand_ins: &[
            ("mosquitto.conf\n", "mosquitto.conf & until mosquitto_pub -t some -m thing; do sleep 0.1; done\n"),
            ("ask dump", "head -c 8000000 /dev/zero | mosquitto_pub -r -t work -s; ask dump"),
        ],
    },
    Page {
        name: "nginx",
        before: "
            echo 'include /etc/nginx/modules-enabled/*.conf; user www-data; pid /run/nginx.pid; events {}' \
                > /etc/nginx/nginx.conf
            mkdir -p /etc/nginx/modules-enabled
            nginx",
        stand_ins: &[
            ("memprof ps ", "worker=$(host nginx); memprof ps "),
            ("4711", "$worker"),
        ],
    },
    Page {
        name: "httpd",
        before: "install -d /run/lock; apachectl start",
        stand_ins: &[
            ("memprof ps ", "worker=$(host apache2); memprof ps "),
            ("4711", "$worker"),
        ],
    },
    Page {
        name: "mariadb",
        before: "
            install -d -o mysql /run/mysqld
            setpriv --reuid=mysql --regid=mysql --init-groups mariadbd &
            until mariadb -e 'SELECT 1'; do sleep 0.1; done",
        stand_ins: &[("memprof activate", "host mariadbd; memprof activate")],
    },
    Page {
        name: "postgresql",
        before: "
            install -d -o postgres -m 2775 /run/postgresql
            pg_ctlcluster \"$(pg_lsclusters -h | awk '{ print $1; exit }')\" main start
            psql() { setpriv --reuid=postgres --regid=postgres --init-groups psql -v ON_ERROR_STOP=1 \"$@\"; }",
        stand_ins: &[],
    },
    Page {
        name: "traffic-server",
        before: "
            cat plugin.config >> /etc/trafficserver/plugin.config
            install -d -o trafficserver /run/trafficserver
            LD_PRELOAD=libjemalloc.so.2 MALLOC_CONF=prof:true,prof_active:false \
                setpriv --reuid=trafficserver --regid=trafficserver --init-groups traffic_manager &
            until grep -s 'traffic server running' /var/log/trafficserver/diags.log; do sleep 0.1; done
            until traffic_ctl server status | grep on; do sleep 0.1; done",
        stand_ins: &[(
            "jeprof",
            "until ls /var/cache/trafficserver/heap/*.heap; do sleep 0.1; done; jeprof",
        )],
    },
];

/// Pages whose commands `bus_lua.rs` types.
const ELSEWHERE: &[&str] = &["dnsdist", "haproxy", "knot-resolver", "pdns-recursor"];

#[test]
fn commands_of_host_pages_work() {
    for Page {
        name,
        before,
        stand_ins,
    } in PAGES
    {
        let blocks = blocks(&source("hosts-examples").join(name).join("README.md"), "sh");
        let commands: String = blocks.into_iter().map(|block| block.commands).collect();
        assert!(!commands.is_empty(), "{name} has no command");
        let commands = stand_in(&commands, stand_ins);
        let there = format!("cp \"$SOURCE/hosts-examples/{name}/\"* .");
        type_in(name, System::Own, &format!("{there}\n{before}\n{commands}"));
    }
}

#[test]
fn host_pages_with_commands_are_all_tested() {
    let known = PAGES.iter().map(|page| page.name);
    let mut known: Vec<&str> = known.chain(ELSEWHERE.iter().copied()).collect();
    known.sort_unstable();
    let directories = std::fs::read_dir(source("hosts-examples")).unwrap();
    let mut found = Vec::new();
    for directory in directories {
        let directory = directory.unwrap();
        let page = directory.path().join("README.md");
        if page.exists() && !blocks(&page, "sh").is_empty() {
            found.push(directory.file_name().into_string().unwrap());
        }
    }
    found.sort_unstable();
    assert_eq!(found, known);
}
