//! Environment of a program to profile. Settings of the user are kept.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use crate::exit::{USAGE, with_exit_code};

/// Returns a value for jemalloc's options (`MALLOC_CONF`) with which profiling is possible, and those options of the
/// user that conflict with the requested ones. Options that the user has set are never changed.
///
/// `before` is the value that the user has set; `None` if there is none. If `active`, sampling is on from the start. If
/// `lg_sample` is `None`, no sample interval is requested.
pub(crate) fn malloc_conf_value(
    before: Option<&str>,
    active: bool,
    lg_sample: Option<u8>,
) -> (String, Vec<String>) {
    let before = before.unwrap_or_default();
    let mut wanted = vec![
        ("prof", "true".to_owned()),
        ("prof_active", active.to_string()),
    ];
    wanted.extend(lg_sample.map(|lg| ("lg_prof_sample", lg.to_string())));
    let mut options: Vec<String> = Vec::new();
    let mut conflicting = Vec::new();
    for (key, value) in wanted {
        // Of several values, jemalloc uses the last.
        let user_value = before
            .split(',')
            .rev()
            .find_map(|option| option.split_once(':').filter(|(name, _)| *name == key));
        match user_value {
            None => options.push(format!("{key}:{value}")),
            Some((_, user_value)) if user_value != value => {
                conflicting.push(format!("{key}:{user_value}"))
            }
            Some(_) => {}
        }
    }
    options.extend((!before.is_empty()).then(|| before.to_owned()));
    (options.join(","), conflicting)
}

/// Returns the value of `LD_PRELOAD` with `libraries` after those that the user preloads. A library that the user
/// preloads already is not added again. `before` is the user's value; `None` if there is none.
///
/// # Errors
/// A path has a separator of `LD_PRELOAD` in it: a colon or a blank.
pub(crate) fn preload_value<'a>(
    before: Option<&OsStr>,
    libraries: impl IntoIterator<Item = &'a Path>,
) -> anyhow::Result<OsString> {
    let mut value = before
        .map(|before| before.as_bytes().to_vec())
        .unwrap_or_default();
    for library in libraries {
        let path = library.as_os_str().as_bytes();
        // Colons and spaces both separate paths, and cannot be escaped (ld.so(8)).
        if path.contains(&b':') || path.contains(&b' ') {
            let message = format!(
                "{} cannot be preloaded: its path has a blank or a colon",
                library.display()
            );
            return Err(with_exit_code(USAGE, message));
        }
        if value
            .split(|byte| b": ".contains(byte))
            .any(|known| known == path)
        {
            continue;
        }
        if !value.is_empty() {
            value.push(b':');
        }
        value.extend_from_slice(path);
    }
    Ok(OsString::from_vec(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_options_are_kept() {
        let check = |before: Option<&str>, active, lg, expected: &str, kept: &[&str]| {
            assert_eq!(
                malloc_conf_value(before, active, lg),
                (
                    expected.to_owned(),
                    kept.iter().map(ToString::to_string).collect()
                ),
            );
        };
        check(None, false, None, "prof:true,prof_active:false", &[]);
        check(
            Some(""),
            true,
            Some(12),
            "prof:true,prof_active:true,lg_prof_sample:12",
            &[],
        );
        check(
            Some("background_thread:true"),
            false,
            None,
            "prof:true,prof_active:false,background_thread:true",
            &[],
        );
        check(
            Some("prof:false,lg_prof_sample:19"),
            true,
            Some(12),
            "prof_active:true,prof:false,lg_prof_sample:19",
            &["prof:false", "lg_prof_sample:19"],
        );
        check(
            Some("prof:true,prof_active:false,prof_active:true"),
            true,
            None,
            "prof:true,prof_active:false,prof_active:true",
            &[],
        );
    }

    #[test]
    fn libraries_follow_the_user_s() {
        let check = |before: Option<&str>, expected: &str| {
            let libraries = [Path::new("/l/libjemalloc.so.2"), Path::new("/p/m.so")];
            let found = preload_value(before.map(OsStr::new), libraries).unwrap();
            assert_eq!(found, expected);
        };
        check(None, "/l/libjemalloc.so.2:/p/m.so");
        check(Some("/u/x.so"), "/u/x.so:/l/libjemalloc.so.2:/p/m.so");
        check(
            Some("/p/m.so /u/x.so"),
            "/p/m.so /u/x.so:/l/libjemalloc.so.2",
        );
    }

    #[test]
    fn path_with_separator_is_rejected() {
        let refused = preload_value(None, [Path::new("/a b/m.so")]).unwrap_err();
        assert!(
            refused.to_string().contains("has a blank or a colon"),
            "{refused}"
        );
    }
}
