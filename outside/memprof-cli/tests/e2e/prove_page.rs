//! `memprof leaks --prove --format html` and `memprof holders --format html`, in a real browser.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use webdriver::Browser;

use crate::dist::dist;
use crate::memprof::memprof;
use crate::page::{is_quiet, screenshot};
use crate::page_layout::suits_every_window;
use crate::processes::Process;

/// A type's name that a page may take for markup. It needs no space; a name with a dot is taken for one with its module.
const HOSTILE: &str = "</script><img/src=x/onerror=top.pwned=1>";

/// Holds 3,000 objects of that type and of one whose name no line holds, and nothing but the collector's list points to 2,000 more.
const SCRIPT: &str = "
import ctypes, os, sys
Hostile = type(sys.argv[1], (object,), {'__slots__': ()})
held = [Hostile() for _ in range(3000)]
Long = type('a_class_whose_name_has_no_end_' * 40, (object,), {'__slots__': ()})
long = [Long() for _ in range(3000)]
def lose():
    for _ in range(2000):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(Hostile()))
lose()
print('ready', os.getpid(), flush=True)
for line in sys.stdin: print(line, end='', flush=True)
";

fn start(sockets: &Path) -> Process {
    let mut command = Command::new(dist("bin/memprof"));
    command.args(["run", "--active", "--lg-sample", "10", "--"]);
    command.args(["/usr/bin/python3", "-c", SCRIPT]);
    command
        .env("MEMPROF_SOCKET_DIR", sockets)
        .env("PYTHONMALLOC", "malloc");
    Process::start(command, &[HOSTILE])
}

/// Opens a page, which must neither complain nor ask for anything, before and after `look`.
fn open(page: &Path, look: impl FnOnce(&Browser)) {
    let address = format!("file://{}", page.display());
    let browser = Browser::open();
    browser.navigate(&address);
    browser.wait_for("document.querySelectorAll('tr[aria-rowindex]').length");
    look(&browser);
    let made =
        browser.run_script("return document.querySelectorAll('img, iframe, main script').length");
    assert_eq!(made, 0);
    assert_eq!(browser.run_script("return top.pwned ?? null"), Value::Null);
    suits_every_window(&browser, page.file_stem().unwrap().to_str().unwrap());
    is_quiet(&browser, &address);
}

/// The row whose name is that type's, in the panel that is shown.
const ROW: &str = "[...document.querySelectorAll('.panel:not([hidden]) tr[aria-rowindex]')]
    .find(row => row.querySelector('td.name').title === HOSTILE)";

fn of_row(script: &str) -> String {
    script
        .replace("ROW", ROW)
        .replace("HOSTILE", &json!(HOSTILE).to_string())
}

#[test]
fn pages_of_leaks_and_holders_escape_names() {
    let place = tempfile::tempdir().unwrap();
    fs::set_permissions(place.path(), Permissions::from_mode(0o700)).unwrap();
    let mut process = start(place.path());
    let pid = process.pid.to_string();
    let write = |command: &[&str], name: &str| {
        let page = place.path().join(name);
        let more = ["--max-pause", "5s", "--format", "html", "-o"];
        let args = [command, &[&pid], &more, &[page.to_str().unwrap()]].concat();
        let reported = memprof(place.path(), &args).exits(0);
        assert_eq!((reported.stdout, reported.stderr), Default::default());
        page
    };
    open(&write(&["leaks", "--prove"], "leaks.html"), |browser| {
        let heading = browser.text("#heading");
        assert!(heading.contains(" objects are leaked, "), "{heading}");
        let facts = browser.text(".fact");
        assert!(
            facts.starts_with("Taken at 20") && facts.contains("was stopped for"),
            "{facts}"
        );
        // Few of them are samples, in the last row with frames: the rows are filtered, and that one is opened.
        browser.type_text("body", "/");
        browser.type_text("#search", "onerror");
        browser.wait_for(&of_row("ROW"));
        let is_parent = "row => row.ariaExpanded === 'false' &&";
        let sampled = ROW.replace(".find(row =>", &format!(".findLast({is_parent}"));
        let sampled = of_row(&sampled);
        browser.run_script(&format!("({sampled}).querySelector('td.name').click()"));
        browser.wait_for("document.querySelector('tr[aria-expanded=true] + tr[aria-level=\"2\"]')");
        let frames = browser.run_script(
            "return [...document.querySelectorAll('tr[aria-level=\"2\"]')].map(row => row.textContent).join()",
        );
        assert!(frames.as_str().unwrap().contains("PyObject"), "{frames}");
        screenshot(browser, "leaks_page");
        // Closed again by the keyboard.
        browser.type_text(".panel", "\u{e012}");
        browser.wait_for("!document.querySelector('tr[aria-level=\"2\"]')");
        browser.type_text("#search", "\u{e00c}");
        browser.wait_for("document.querySelector('#search').value === ''");
        browser.click("th:nth-child(2) button");
        browser.wait_for("document.querySelector('th:nth-child(2)').ariaSort === 'descending'");
    });
    open(&write(&["holders"], "holders.html"), |browser| {
        let heading = browser.text("#heading");
        assert!(heading.contains(" objects are held; "), "{heading}");
        browser.type_text("#search", "onerror");
        browser.wait_for(&of_row("ROW"));
        let above =
            browser.run_script("return document.querySelector('tr[aria-level=\"1\"]').textContent");
        let is_variable = |above: &str| above.contains("variable ") || above.contains("__main__.");
        assert!(is_variable(above.as_str().unwrap()), "{above}");
        screenshot(browser, "holders_page");
        browser.click("#tab-1");
        let objects = browser.run_script(&of_row(
            "return (ROW).querySelectorAll('td')[2].textContent",
        ));
        // What is left on a free list may look like one more.
        assert!(objects.as_str().unwrap().starts_with("3,00"), "{objects}");
        browser.type_text("#tab-1", "\u{e012}");
        browser.wait_for("document.querySelector('#tab-0').ariaSelected === 'true'");
    });
    open(
        &write(&["holders", "--class", "onerror"], "class.html"),
        |browser| {
            browser.wait_for(&of_row("ROW"));
            browser.run_script(&of_row("(ROW).querySelector('td.name').click()"));
            browser.wait_for(
                "document.querySelector('tr[aria-level=\"2\"]').textContent.includes('held by ')",
            );
        },
    );
    process.is_unharmed();
}
