//! The main program of a profile, among the files that its process had mapped.

use crate::profile::{Mapping, Profile};

impl Profile {
    /// Returns the first mapping of the main program's file. This is the file that the profile names as its program;
    /// else the first file with code that is no library by its name; else the first file with code; else the first
    /// file. `None` if no file is mapped.
    pub fn main_file(&self) -> Option<&Mapping> {
        let files = || self.mappings.iter().filter(|mapping| mapping.is_file());
        let code = || files().filter(|mapping| mapping.executable);
        let program = self
            .named_program()
            .or_else(|| code().find(|mapping| !mapping.is_library_by_name()))
            .or_else(|| code().next())
            .or_else(|| files().next())?;
        files().find(|mapping| mapping.path == program.path)
    }

    /// Returns a mapping of the program that the profile names: by the program's path, else by its file name, else by
    /// the name of the host process. `None` if none of these is that of a mapped file.
    pub(crate) fn named_program(&self) -> Option<&Mapping> {
        let files = || self.mappings.iter().filter(|mapping| mapping.is_file());
        let by_path = |path: &str| files().find(|mapping| mapping.path == path);
        let by_name = |path: &str| {
            let name = path.rsplit('/').next();
            files().find(|mapping| mapping.executable && Some(mapping.file_name()) == name)
        };
        let program = self.program.as_deref();
        let host = self.origin.host.as_deref();
        program
            .and_then(by_path)
            .or_else(|| program.and_then(by_name))
            .or_else(|| host.and_then(by_name))
    }
}

impl Mapping {
    /// Returns whether the file is a library by its name, as `libc.so.6` and `binding.node` are.
    pub(crate) fn is_library_by_name(&self) -> bool {
        const SUFFIXES: [&str; 6] = [".so", ".node", ".dll", ".dylib", ".pyd", ".jsa"];
        let name = self.file_name();
        name.contains(".so.") || SUFFIXES.iter().any(|suffix| name.ends_with(suffix))
    }
}

#[cfg(test)]
mod tests {
    use super::{Mapping, Profile};
    use crate::profile::{Address, ProfileOrigin};

    #[test]
    fn main_program_is_the_named_file_or_first_code_without_library_name() {
        let check = |program: Option<&str>, host: Option<&str>, files: &[&str], expected: &str| {
            let mappings = files.iter().enumerate().map(|(index, file)| {
                let (access, path) = file.split_once(' ').expect("access and path");
                Mapping {
                    start: Address(0x1000 * index as u64),
                    end: Address(0x1000 * (index as u64 + 1)),
                    executable: access == "x",
                    path: path.to_owned(),
                    ..Mapping::default()
                }
            });
            let profile = Profile {
                mappings: mappings.collect(),
                program: program.map(str::to_owned),
                origin: ProfileOrigin {
                    host: host.map(str::to_owned),
                    ..ProfileOrigin::default()
                },
                ..Profile::default()
            };
            let found = profile.main_file().map(|main| main.path.as_str());
            assert_eq!(found.unwrap_or("none"), expected, "{files:?}");
        };
        let java = [
            "r /jvm/classes.jsa",
            "r /jvm/java",
            "x /jvm/java",
            "x /jvm/libjvm.so",
        ];
        check(None, None, &java, "/jvm/java");
        let readable_is_executable = ["x /jvm/classes.jsa", "x /jvm/java"];
        check(None, None, &readable_is_executable, "/jvm/java");
        let loader = [
            "x /lib/ld-linux-x86-64.so.2",
            "x /lib/libc.so.6",
            "x /srv/app",
        ];
        check(None, None, &loader, "/srv/app");
        check(
            None,
            None,
            &["r /usr/share/locale.mo", "x /srv/app"],
            "/srv/app",
        );
        check(
            None,
            None,
            &["x /srv/binding.node", "x /usr/bin/node"],
            "/usr/bin/node",
        );
        check(None, None, &["x /srv/plugin.so"], "/srv/plugin.so");
        check(None, None, &["r /srv/app"], "/srv/app");
        check(None, None, &["x [vdso]", "x "], "none");
        // A library may be run as a program.
        let both = ["x /srv/other", "x /srv/app.so"];
        check(Some("/srv/app.so"), None, &both, "/srv/app.so");
        check(Some("build/app.so"), None, &both, "/srv/app.so");
        check(Some("/no/such"), Some("app.so"), &both, "/srv/app.so");
        check(Some("/no/such"), Some("python3"), &both, "/srv/other");
    }
}
