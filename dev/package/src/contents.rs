//! Contents of the packages.

/// A package, which is built both for Debian and as RPM.
#[derive(Debug)]
pub(crate) struct Package {
    pub(crate) name: &'static str,
    pub(crate) summary: &'static str,
    pub(crate) description: &'static str,
    /// The other package of the project that it depends on.
    pub(crate) needs: DependencyKind,
    /// Cargo package that the program or plugin is built from; `None` if the package has no code.
    pub(crate) built_from: Option<&'static str>,
    pub(crate) files: &'static [File],
}

/// Dependency of a package on another one of the project.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DependencyKind {
    Nothing,
    /// Installed with the package unless the user declines (`Recommends`).
    Recommended(&'static str),
    /// Required, in the package's own version.
    SameVersion(&'static str),
}

/// A file of a package, or a directory of files.
#[derive(Debug)]
pub(crate) struct File {
    pub(crate) from: FileSource,
    /// Path of installation, without the first `/`; a directory's ends in `/`.
    pub(crate) to: &'static str,
}

/// Origin of a packaged file.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FileSource {
    /// A program that cargo built, without its debug information, which goes into [`DEBUG`].
    Program(&'static str),
    /// A shared library that cargo built, without its debug information.
    Library(&'static str),
    /// A static library that cargo built.
    Archive(&'static str),
    /// A file or directory of the source tree.
    Tree(&'static str),
    /// The TOML below this heading of CONFIGURATION.md, with each line commented out.
    Commented(&'static str),
    /// The manual pages that `memprof man` writes.
    Manual,
    /// The script that `memprof completions` prints for this shell.
    Completion(&'static str),
    /// The book, with what its pages include.
    Book,
    /// Crates, headers and examples for authors of plugins and hosts.
    Sdk,
}

/// Returns the entry of a file or directory that a package installs at the path `to`.
const fn package_file(from: FileSource, to: &'static str) -> File {
    File { from, to }
}

/// Directory of an example, with its configuration and instructions.
macro_rules! example_directory {
    ($host:literal) => {
        package_file(
            FileSource::Tree(concat!("hosts-examples/", $host)),
            concat!("usr/share/doc/memprof-plugin/", $host, "/"),
        )
    };
}

/// Drop-in of an example that makes systemd start a unit with profiling.
macro_rules! systemd_drop_in {
    ($host:literal, $unit:literal) => {
        package_file(
            FileSource::Tree(concat!(
                "hosts-examples/",
                $host,
                "/",
                $unit,
                ".service.d.conf"
            )),
            concat!(
                "usr/share/memprof/systemd/",
                $unit,
                ".service.d/memprof.conf"
            ),
        )
    };
}

/// All packages except [`DEBUG`], which gets the debug information that is split from the others.
pub(crate) const PACKAGES: &[Package] = &[
    Package {
        name: "memprof",
        summary: "heap profiler for live processes",
        description: "memprof attaches to a running process, samples what it allocates, shows who holds that \
                      memory, and detaches. It controls processes that loaded its plugin, reports as text, \
                      flamegraph, page or pprof, proves leaks, and checks memory budgets in CI.",
        needs: DependencyKind::Recommended("memprof-plugin"),
        built_from: Some("memprof-cli"),
        files: &[
            package_file(FileSource::Program("memprof"), "usr/bin/memprof"),
            package_file(FileSource::Manual, "usr/share/man/man1/"),
            package_file(
                FileSource::Completion("bash"),
                "usr/share/bash-completion/completions/memprof",
            ),
            // Debian's zsh reads this directory,
            package_file(
                FileSource::Completion("zsh"),
                "usr/share/zsh/vendor-completions/_memprof",
            ),
            // and Fedora's this one.
            package_file(
                FileSource::Completion("zsh"),
                "usr/share/zsh/site-functions/_memprof",
            ),
            package_file(
                FileSource::Completion("fish"),
                "usr/share/fish/vendor_completions.d/memprof.fish",
            ),
            package_file(
                FileSource::Tree("README.md"),
                "usr/share/doc/memprof/README.md",
            ),
            package_file(
                FileSource::Tree("CHANGELOG.md"),
                "usr/share/doc/memprof/CHANGELOG.md",
            ),
            package_file(
                FileSource::Tree("CONFIGURATION.md"),
                "usr/share/doc/memprof/CONFIGURATION.md",
            ),
            package_file(
                FileSource::Tree("PROTOCOL.md"),
                "usr/share/doc/memprof/PROTOCOL.md",
            ),
            package_file(
                FileSource::Tree("SECURITY.md"),
                "usr/share/doc/memprof/SECURITY.md",
            ),
            // The book, at the path that README's links have.
            package_file(FileSource::Book, "usr/share/doc/memprof/docs/src/"),
        ],
    },
    Package {
        name: "memprof-plugin",
        summary: "heap profiling for any process that loads it",
        description: "memory_profile.so is the file that a process loads to be profiled: by memprof attach and \
                      memprof run, by the configuration of a server that loads plugins, or as a module of a \
                      language. With headers, library, crates and examples for hosts and plugins in C and Rust, \
                      and the configuration of servers.",
        needs: DependencyKind::Nothing,
        built_from: Some("memory-profile"),
        files: &[
            package_file(
                FileSource::Library("libmemory_profile.so"),
                "usr/lib/memprof/memory_profile.so",
            ),
            package_file(
                FileSource::Archive("libmemprof_host.a"),
                "usr/lib/memprof/libmemprof_host.a",
            ),
            package_file(
                FileSource::Archive("libmemprof_adapters.a"),
                "usr/lib/memprof/libmemprof_adapters.a",
            ),
            package_file(
                FileSource::Tree("in-process/memprof-adapters-c/adapters.map"),
                "usr/lib/memprof/adapters.map",
            ),
            package_file(
                FileSource::Tree("memprof-plugin-abi/include/memprof.h"),
                "usr/include/memprof.h",
            ),
            package_file(
                FileSource::Tree("in-process/memprof-host-c/include/memprof_host.h"),
                "usr/include/memprof_host.h",
            ),
            // `memprof plugin new` looks for them there.
            package_file(FileSource::Sdk, "usr/share/memprof/sdk/"),
            package_file(
                FileSource::Commented("The plugin's keys"),
                "etc/memprof/memory_profile.toml",
            ),
            systemd_drop_in!("unprepared", "unprepared"),
            systemd_drop_in!("redis", "redis-server"),
            systemd_drop_in!("mosquitto", "mosquitto"),
            systemd_drop_in!("traffic-server", "trafficserver"),
            systemd_drop_in!("haproxy", "haproxy"),
            example_directory!("redis"),
            example_directory!("mosquitto"),
            example_directory!("traffic-server"),
            example_directory!("postgresql"),
            example_directory!("mariadb"),
            example_directory!("nginx"),
            example_directory!("httpd"),
            example_directory!("java"),
            example_directory!("python"),
            example_directory!("node"),
            example_directory!("ruby"),
            example_directory!("lua"),
            example_directory!("ffi"),
            example_directory!("haproxy"),
            example_directory!("dnsdist"),
            example_directory!("knot-resolver"),
            example_directory!("pdns-recursor"),
            package_file(
                FileSource::Tree("SECURITY.md"),
                "usr/share/doc/memprof-plugin/SECURITY.md",
            ),
        ],
    },
    Package {
        name: "memprof-fleet",
        summary: "heap profiles of many machines",
        description: "The agent takes profiles of a machine's hosts by a policy, and writes them to a directory or \
                      to S3 as Parquet files; memprof fleet asks them who holds the memory, and what grew. \
                      The service is not started: systemctl enable --now memprof-agent.",
        needs: DependencyKind::SameVersion("memprof"),
        built_from: Some("memprof-fleet"),
        files: &[
            package_file(
                FileSource::Program("memprof-fleet"),
                "usr/bin/memprof-fleet",
            ),
            package_file(
                FileSource::Tree("outside/memprof-fleet/memprof-agent.service"),
                "usr/lib/systemd/system/memprof-agent.service",
            ),
            package_file(
                FileSource::Commented("The fleet's file"),
                "etc/memprof/fleet.toml",
            ),
        ],
    },
];

/// Files of every package, below `usr/share/doc/NAME/`.
pub(crate) const LICENSES: [&str; 2] = ["LICENSE-APACHE", "LICENSE-MIT"];

/// Package with the debug information.
pub(crate) const DEBUG: Package = Package {
    name: "memprof-debug",
    summary: "debug information of memprof",
    description: "Lines and functions of memprof, memprof-fleet and memory_profile.so, for gdb and perf.",
    needs: DependencyKind::Nothing,
    built_from: None,
    files: &[],
};

#[cfg(test)]
mod tests {
    use super::{FileSource, PACKAGES};
    use xtask::run::project_root;

    /// The SDK has the crates alone, so a link to another file of the sources leads nowhere.
    #[test]
    fn readmes_of_the_sdk_link_to_no_file_of_the_sources() {
        for name in xtask::dist::SDK {
            let folders = ["", "in-process", "outside"].map(|folder| project_root().join(folder));
            let readmes = folders.map(|folder| folder.join(name).join("README.md"));
            let readme = readmes.iter().find(|readme| readme.exists());
            let readme = std::fs::read_to_string(readme.unwrap()).unwrap();
            assert!(!readme.contains("](.."), "{name}: {readme}");
        }
    }

    #[test]
    fn readme_links_are_files_of_the_package() {
        let installed = |link: &str| {
            PACKAGES[0].files.iter().any(|file| match file.from {
                FileSource::Book => {
                    link.starts_with("docs/src/") && project_root().join(link).exists()
                }
                FileSource::Tree(tree) => {
                    let is_covered = link == tree || link.starts_with(&format!("{tree}/"));
                    let is_in_place =
                        file.to.trim_end_matches('/') == format!("usr/share/doc/memprof/{tree}");
                    is_covered && is_in_place && project_root().join(link).exists()
                }
                _ => false,
            })
        };
        let readme = std::fs::read_to_string(project_root().join("README.md")).unwrap();
        for link in readme.split("](").skip(1) {
            let link = link.split([')', '#']).next().unwrap();
            assert!(installed(link), "README.md: {link} is not in the package");
        }
    }
}
