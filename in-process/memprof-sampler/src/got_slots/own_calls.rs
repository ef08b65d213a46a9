//! The slots through which an object calls functions that it defines itself, as a library does whose
//! functions others may replace (gABI, "Symbol Preemption").

use core::ffi::CStr;

use super::{for_each_object, value};

/// The place that such a call leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leads {
    /// The object's own function.
    Inside,
    /// The function of that name of another object.
    Elsewhere,
    /// The loader looks the function up at the first call.
    Unbound,
}

/// Visits the calls of the object that contains `address` to functions which it defines itself, with the
/// address of its own one. Nothing for an object whose calls are bound when it is linked.
pub fn own_calls(address: usize, visit: &mut dyn FnMut(&CStr, usize, Leads)) {
    for_each_object(&mut |object| {
        if !object.code.contains(&address) {
            return;
        }
        for slot in object.slots() {
            let Some(own) = slot.own else {
                continue;
            };
            let found = value(slot.at);
            let leads = if found == own {
                Leads::Inside
            } else if slot.may_be_lazy && object.code.contains(&found) {
                Leads::Unbound
            } else {
                Leads::Elsewhere
            };
            visit(slot.name, own, leads);
        }
    });
}
