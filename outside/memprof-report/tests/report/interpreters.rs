//! Notes on programs whose own functions the C stack does not show.

use memprof_report::Options;

use crate::support::report_on;

/// Checks whether a report of a Java program has the note on its methods. The stacks call malloc from generated code,
/// which the profile names `generated`, or not.
fn check_java_note(generated: Option<&str>, expected: bool) {
    let symbol = generated.map_or(String::new(), |name| format!("0x0000000000201fff {name}\n"));
    let dump = format!(
        "--- symbol\nbinary=/usr/bin/java\n0x0000000000101fff Unsafe_AllocateMemory0\n{symbol}---\n--- heap\n\
         heap_v2/1024\n  t*: 2: 4096 [0: 0]\n@ 0x102000 0x202000\n  t*: 2: 4096 [0: 0]\n\nMAPPED_LIBRARIES:\n\
         00100000-00180000 r-xp 00000000 fe:00 1 /usr/lib/jvm/lib/server/libjvm.so\n\
         00200000-00280000 rwxp 00000000 00:00 0 \n"
    );
    let (_, notes) = report_on(dump.as_bytes(), None, None, &Options::default()).unwrap();
    let note = notes.iter().any(|note| note.contains("Compiler.perfmap"));
    assert_eq!(note, expected, "{generated:?}: {notes:?}");
}

#[test]
fn java_without_names_of_methods_has_a_note() {
    check_java_note(None, true);
    check_java_note(Some("java.nio.DirectByteBuffer.<init>"), false);
    // A part of HotSpot, in which all methods run that are not compiled.
    check_java_note(Some("Interpreter"), true);
}
