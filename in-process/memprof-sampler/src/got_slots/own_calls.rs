//! Calls of an object to functions that it defines itself. They use a slot if another object's definition may replace
//! the function (gABI, "Symbol Preemption").

use core::ffi::CStr;

use super::{for_each_object, slot_value};

/// Function to which such a call leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallTarget {
    /// The object's own function.
    Inside,
    /// The function of the same name in another object.
    Elsewhere,
    /// Not known yet: the loader looks the function up at the first call.
    Unbound,
}

/// Visits the slots through which an object calls functions that it defines itself. The object is the one that contains
/// `address`. `visit` gets the function's name, the address of the object's own definition, and whether the slot leads
/// to that definition, elsewhere, or is not bound yet. Visits nothing if the linker bound these calls when it created
/// the object.
pub fn visit_own_calls(address: usize, visit: &mut dyn FnMut(&CStr, usize, CallTarget)) {
    for_each_object(&mut |object| {
        if !object.code.contains(&address) {
            return;
        }
        for slot in object.call_slots() {
            let Some(definition) = slot.own else {
                continue;
            };
            let own = definition.address;
            let target = slot_value(slot.address);
            let is_chosen = definition.is_indirect() && object.code.contains(&target);
            let target = if target == own || is_chosen {
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
