//! Hooks that enter while the tables are cleared.

use loom::cell::UnsafeCell;
use loom::model;
use loom::sync::Arc;
use loom::thread;

use crate::atomic::AtomicUsize;
use crate::gate::Gate;

/// Loom fails where one writes to the cell while another looks into it.
#[test]
fn nobody_is_inside_while_it_is_closed() {
    model(|| {
        let shared = Arc::new((Gate(AtomicUsize::new(0)), UnsafeCell::new(0)));
        let hook = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (gate, table) = &*shared;
                if let Some(_inside) = gate.enter() {
                    table.with(|_| ());
                }
            })
        };
        let (gate, table) = &*shared;
        let wait = || {
            thread::yield_now();
            true
        };
        if gate.close(wait) {
            table.with_mut(|_| ());
        }
        gate.open();
        hook.join().unwrap();
        assert!(gate.close(|| false), "nobody is left inside");
    });
}

#[test]
fn who_waits_no_longer_leaves_it_usable() {
    model(|| {
        let gate = Gate(AtomicUsize::new(0));
        let inside = gate.enter();
        assert!(inside.is_some());
        assert!(!gate.close(|| false));
        gate.open();
        drop(inside);
        assert!(gate.enter().is_some());
    });
}

#[test]
fn a_forked_child_forgets_who_was_inside() {
    model(|| {
        let gate = Gate(AtomicUsize::new(0));
        core::mem::forget(gate.enter());
        assert!(!gate.close(|| false));
        gate.forget();
        assert!(gate.close(|| false));
    });
}
