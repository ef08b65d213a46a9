//! Reasons for which a difference from a base is no growth.

use crate::profile::Profile;

/// Returns a warning if a profile and its base are of different programs, so that their difference is no growth. `None`
/// if they are of one program, by the name of the host or else of its main file, or a program is unknown.
pub(super) fn other_program_warning(profile: &Profile, base: &Profile) -> Option<String> {
    let program = |profile: &Profile| -> Option<String> {
        let main = profile.main_file().map(|mapping| mapping.file_name());
        profile.origin.host.as_deref().or(main).map(str::to_owned)
    };
    let (new_program, base_program) = (program(profile)?, program(base)?);
    (new_program != base_program).then(|| {
        format!("the base is of another program: {base_program}, not {new_program}; what differs is not growth")
    })
}

/// Returns a warning if memprof's sampler was started again in the process between the two profiles, because each lacks
/// the memory that was allocated before its own start. `None` if both have the same start, if they are of two
/// processes, whose starts differ anyway, or if a start or a process is unknown.
pub(super) fn other_start_warning(profile: &Profile, base: &Profile) -> Option<String> {
    let (new, old) = (&profile.origin, &base.origin);
    let since = new.sampling_since.as_ref()?;
    let base_since = old.sampling_since.as_ref()?;
    // A pid alone does not identify a process: it is used again, and the first process of every container has the same.
    let is_one_process = new.pid.is_some()
        && new.started.is_some()
        && (new.pid, &new.machine, &new.started) == (old.pid, &old.machine, &old.started);
    (is_one_process && since != base_since).then(|| {
        format!(
            "sampling began at another time than in the base: the base has only memory allocated since {base_since}, \
             the profile since {since}; what differs is not growth: take both while one activation lasts"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::ProfileOrigin;

    #[test]
    fn profiles_of_two_activations_are_not_compared_without_a_word() {
        let profile = |pid, started: &str, since: Option<&str>| Profile {
            origin: ProfileOrigin {
                pid: Some(pid),
                started: Some(started.to_owned()),
                sampling_since: since.map(str::to_owned),
                ..ProfileOrigin::default()
            },
            ..Profile::default()
        };
        let check = |pid, started, since, expected: Option<&str>| {
            let base = profile(7, "08:00", Some("09:00"));
            let warning = other_start_warning(&profile(pid, started, since), &base);
            match expected {
                Some(text) => assert!(warning.as_ref().is_some_and(|w| w.contains(text))),
                None => assert_eq!(warning, None),
            }
        };
        check(7, "08:00", Some("09:00"), None);
        check(
            7,
            "08:00",
            Some("09:05"),
            Some("since 09:00, the profile since 09:05"),
        );
        check(8, "08:00", Some("09:05"), None);
        check(7, "09:04", Some("09:05"), None);
        check(7, "08:00", None, None);
    }
}
