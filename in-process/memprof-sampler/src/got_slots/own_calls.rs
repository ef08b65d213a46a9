//! Calls of an object to functions that it defines itself, where these go through a slot because another
//! object's definition may replace the function (gABI, "Symbol Preemption").

use core::ffi::CStr;

use super::{for_each_object, slot_value};

/// Function that such a call reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallTarget {
    /// The object's own function.
    Inside,
    /// The function of that name of another object.
    Elsewhere,
    /// Not known yet: the loader looks the function up at the first call.
    Unbound,
}

/// Visits the slots through which the object that contains `address` calls functions which it defines itself:
/// name, address of its own definition, and the function called. Visits nothing if the object's calls were
/// bound when it was linked.
pub fn visit_own_calls(address: usize, visit: &mut dyn FnMut(&CStr, usize, CallTarget)) {
    for_each_object(&mut |object| {
        if !object.code.contains(&address) {
            return;
        }
        for slot in object.call_slots() {
            let Some(own) = slot.own else {
                continue;
            };
            let target = slot_value(slot.address);
            let target = if target == own {
                CallTarget::Inside
            } else if slot.may_be_lazy && object.code.contains(&target) {
                CallTarget::Unbound
            } else {
                CallTarget::Elsewhere
            };
            visit(slot.name, own, target);
        }
    });
}
