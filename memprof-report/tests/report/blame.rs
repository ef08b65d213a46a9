//! Whose row a stack is, of stacks as they are in programs that the rules were not made for.

use memprof_report::Options;

use crate::support::report_on;

/// Root first, and the first row of the table.
const STACKS: &[(&str, &str)] = &[
    // opt of LLVM 14: operators of a class, containers, pools.
    (
        "_start;main;llvm::parseIR;llvm::LLParser::parseInstruction;llvm::LLParser::parseBr;llvm::User::operator new",
        "llvm::LLParser::parseBr",
    ),
    (
        "_start;main;llvm::Value::setName;llvm::ValueSymbolTable::createValueName;llvm::StringMapImpl::RehashTable",
        "llvm::ValueSymbolTable::createValueName",
    ),
    (
        "main;llvm::LLParser::parseValID;llvm::SmallVectorBase<unsigned int>::grow_pod;\
         llvm::SmallVectorBase<unsigned int>::mallocForGrow",
        "llvm::LLParser::parseValID",
    ),
    // A program of templates, with an allocator of its own, on a thread of std::async.
    (
        "clone3;start_thread;std::call_once<void (*)()>;__gthread_once;std::function<void ()>::operator();\
         market::build_orders;market::index<std::string, market::order>::insert;\
         std::vector<market::order, market::arena_allocator<market::order> >::push_back;\
         market::arena_allocator<market::order>::allocate",
        "market::index<std::string, market::order>::insert",
    ),
    (
        "start_thread;std::call_once<void (*)()>;__gthread_once;std::__once_call_impl",
        "std::__once_call_impl (plumbing)",
    ),
    // Go, whose own stack is another one.
    (
        "runtime.asmcgocall;_cgo_48872ccfe297_Cfunc_keep_page;keep_page",
        "keep_page",
    ),
    (
        "runtime.asmcgocall;_cgo_48872ccfe297_Cfunc__Cmalloc",
        "_cgo_48872ccfe297_Cfunc__Cmalloc (plumbing)",
    ),
    // Python with GObject's bindings, which call by libffi.
    (
        "main;PyEval_EvalCode;_PyEval_EvalFrameDefault;pygi_invoke_c_callable;ffi_call;g_memdup2;g_malloc",
        "pygi_invoke_c_callable",
    ),
    // A server of axum, whose handlers copy and read values of serde's.
    (
        "std::sys::thread::thread_start;tokio::runtime::task::raw::poll;\
         <F as axum::handler::Handler<(M, T1)>>::call::{{closure}};shop::read_order::{{closure}};\
         <serde_json::value::Value as core::clone::Clone>::clone;\
         <serde_json::map::Map<alloc::string::String, serde_json::value::Value> as core::clone::Clone>::clone;\
         <u8 as <[_]>::to_vec_in::ConvertVec>::to_vec::<alloc::alloc::Global>",
        "shop::read_order::{{closure}}",
    ),
    (
        "tokio::runtime::task::raw::poll;<axum::json::Json<shop::Order> as axum_core::FromRequest<S>>::from_request;\
         serde_json::de::from_slice;<serde_core::de::impls::StringVisitor as serde_core::de::Visitor>::visit_str",
        "<axum::json::Json<…> as axum_core::FromRequest<…>>::from_request",
    ),
    // Erlang.
    (
        "_start;main;erl_start;erts_alloc_init;erts_alcu_start;erts_sys_aligned_alloc",
        "erts_alloc_init",
    ),
];

fn dump(stack: &str) -> String {
    let functions: Vec<_> = stack.split(';').rev().collect();
    let address = |at: usize| 0x2000 + 0x100 * at;
    let mut text = "--- symbol\nbinary=/usr/bin/program\n".to_owned();
    for (at, function) in functions.iter().enumerate() {
        text += &format!("{:#018x} {function}\n", address(at) - 1);
    }
    let addresses = (0..functions.len()).map(|at| format!(" {:#x}", address(at)));
    let addresses: String = addresses.collect();
    let counts = "t*: 1: 1024 [0: 0]";
    text + &format!(
        "---\n--- heap\nheap_v2/1\n  {counts}\n@{addresses}\n  {counts}\n\nMAPPED_LIBRARIES:\n\
         00001000-00008000 r-xp 00000000 fe:00 1 /usr/bin/program\n"
    )
}

#[test]
fn the_first_row_is_the_programs_own_function() {
    for (stack, expected) in STACKS {
        let report = report_on(dump(stack).as_bytes(), None, None, &Options::default());
        let text = String::from_utf8(report.expect("it is a good dump").0).expect("it is text");
        let row = text.lines().nth(2).expect("a row");
        assert!(row.ends_with(&format!("  {expected}")), "{stack}:\n{text}");
    }
}
