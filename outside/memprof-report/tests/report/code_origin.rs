//! Code origins in stacks of real programs for which the rules were not made.

use memprof_report::Options;

use crate::support::report_on;

/// Stacks, root first, with the first row of the table.
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
        "+clone3;+start_thread;std::call_once<void (*)()>;__gthread_once;std::function<void ()>::operator();\
         market::build_orders;market::index<std::string, market::order>::insert;\
         std::vector<market::order, market::arena_allocator<market::order> >::push_back;\
         market::arena_allocator<market::order>::allocate",
        "market::index<std::string, market::order>::insert",
    ),
    (
        "+start_thread;std::call_once<void (*)()>;__gthread_once;std::__once_call_impl",
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
        "+main;+PyEval_EvalCode;+_PyEval_EvalFrameDefault;pygi_invoke_c_callable;+ffi_call;+g_memdup2;+g_malloc",
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
    // protoc: protobuf's streams and containers.
    (
        "main;google::protobuf::compiler::cpp::CppGenerator::Generate;\
         google::protobuf::compiler::cpp::FileGenerator::GenerateSource;google::protobuf::io::Printer::FormatInternal;\
         google::protobuf::io::Printer::Next;google::protobuf::io::StringOutputStream::Next;std::string::_M_mutate",
        "google::protobuf::compiler::cpp::FileGenerator::GenerateSource",
    ),
    (
        "main;google::protobuf::FileDescriptorProto::_InternalParse;google::protobuf::Arena::CreateMaybeMessage<\
         google::protobuf::DescriptorProto>;google::protobuf::RepeatedField<int>::Reserve",
        "google::protobuf::FileDescriptorProto::_InternalParse",
    ),
    // A program of templates of nlohmann-json and Boost.
    (
        "_start;main;market::read_catalog;nlohmann::json_abi_v3_11_2::basic_json<std::map, std::vector>::parse<std::string>;\
         nlohmann::json_abi_v3_11_2::detail::json_sax_dom_parser<nlohmann::json_abi_v3_11_2::basic_json<std::map> >::key;\
         std::_Rb_tree<std::string, int>::_M_emplace_hint_unique",
        "market::read_catalog",
    ),
    (
        "_start;main;market::fill_book;boost::multi_index::detail::hashed_index<market::Order>::insert;\
         boost::multi_index::multi_index_container<market::Order>::allocate_node",
        "market::fill_book",
    ),
    (
        "_start;main;market::read_settings;boost::property_tree::json_parser::read_json<boost::property_tree::ptree>;\
         boost::_mfi::mf1<void, market::settings, char>::operator();\
         boost::property_tree::basic_ptree<std::string, std::string>::basic_ptree",
        "market::read_settings",
    ),
    (
        "_start;main;market::remember;boost::circular_buffer<market::Order>::initialize_buffer",
        "market::remember",
    ),
    (
        "+start_thread;std::thread::_State_impl::_M_run;market::post_work;boost::asio::post<boost::asio::io_context>;\
         asio_execution_execute_fn::impl::operator()<boost::asio::io_context>;\
         boost::asio::detail::thread_info_base::allocate<boost::asio::detail::thread_info_base::default_tag>",
        "market::post_work",
    ),
    // libxml2 and SQLite, in programs of C and Go, and in an extension of Python without symbols.
    (
        "_start;main;parse_orders;+xmlReadMemory;+xmlParseDocument;+xmlParseElement;+xmlSAX2StartElementNs;+xmlNewDocNodeEatName",
        "parse_orders",
    ),
    (
        "_start;+Py_BytesMain;+_PyEval_EvalFrameDefault;+xmlSAX2StartElementNs;+xmlNewDocNodeEatName",
        "xmlNewDocNodeEatName (library)",
    ),
    (
        "runtime.asmcgocall;_cgo_e6ccbb648535_Cfunc_prepare_all;prepare_all;+sqlite3_prepare_v2;+sqlite3RunParser;\
         +sqlite3Select;+sqlite3VdbeCreate;+sqlite3DbMallocRaw",
        "prepare_all",
    ),
    // valac: GObject and Vala's containers.
    (
        "main;+vala_flow_analyzer_analyze;+vala_phi_function_construct;+vala_array_list_construct;+vala_list_construct;\
         +vala_collection_construct;+vala_iterable_construct;+g_type_create_instance;+g_slice_alloc0;+g_slice_alloc",
        "vala_phi_function_construct",
    ),
    // Async Rust: code derived by serde, a connection in a task of the program and in one of hyper, columns.
    (
        "tokio::runtime::task::raw::poll;crawler::crawl::{{closure}};crawler::parse_page;serde_json::de::from_str;\
         crawler::_::<impl serde_core::de::Deserialize for crawler::Page>::deserialize;\
         <crawler::_::<impl serde_core::de::Deserialize for crawler::Page>::deserialize::__Visitor as \
         serde_core::de::Visitor>::visit_map",
        "crawler::parse_page",
    ),
    (
        "std::sys::thread::thread_start;crawler::parse_feed;quick_xml::de::from_str;\
         quick_xml::utils::CowRef<str>::deserialize_str",
        "crawler::parse_feed",
    ),
    (
        "tokio::runtime::task::raw::poll;gateway::serve::{{closure}}::{{closure}};\
         hyper::proto::h1::conn::Conn<I,B,T>::poll_read_keep_alive;hyper::proto::h1::io::Buffered<T,B>::poll_read_from_io;\
         bytes::bytes_mut::BytesMut::reserve",
        "gateway::serve::{{closure}}::{{closure}}",
    ),
    (
        "tokio::runtime::task::raw::poll;hyper::proto::h1::dispatch::Dispatcher<D,Bs,I,T>::poll_read;\
         hyper::proto::h1::io::Buffered<T,B>::poll_read_from_io;bytes::bytes_mut::BytesMut::reserve",
        "hyper::proto::h1::io::Buffered<T,B>::poll_read_from_io (library)",
    ),
    (
        "tokio::runtime::task::raw::poll;warehouse::keep_day::{{closure}};warehouse::make_rows;\
         arrow_array::array::byte_array::GenericByteArray<T>::from_iter_values;\
         arrow_buffer::buffer::mutable::MutableBuffer::try_reallocate",
        "warehouse::make_rows",
    ),
    // Erlang.
    (
        "_start;main;erl_start;erts_alloc_init;+erts_alcu_start;+erts_sys_aligned_alloc",
        "erts_alloc_init",
    ),
    // Modules of servers: stripped ones, such that export the function that was called, and a library of the system.
    (
        "main;ap_run_handler;ap_invoke_filter;*;*;+deflateInit2_;+malloc",
        "cart.so+0x11ff calling deflateInit2_",
    ),
    (
        "main;ap_run_handler;*cart_handler;*;+deflateInit2_;+malloc",
        "cart_handler",
    ),
    (
        "main;ap_run_handler;*cart_handler;ap_pass_brigade;*;+malloc",
        "cart.so+0x10ff",
    ),
    ("main;ap_run_handler;+;+;+malloc", "ap_run_handler"),
    // Exported functions of a stripped library in front of the one that calls malloc.
    (
        "main;+Tcl_MainEx;+Tcl_EvalObjv;+TclpAlloc;+;+malloc",
        "Tcl_EvalObjv",
    ),
    (
        "main;+av_read_frame;+;+av_buffer_alloc;+;+;+malloc",
        "av_read_frame",
    ),
    ("main;+BZ2_bzReadOpen;+;+malloc", "BZ2_bzReadOpen"),
    // A static function of a stripped program below its plumbing: nginx's pools, memory contexts of PostgreSQL.
    (
        "main;ngx_http_read_body;strndup;;malloc",
        "ngx_http_read_body",
    ),
    ("main;tuplestore_puttuple;;;malloc", "program+0x10ff"),
    // Stripped programs: their own code has offsets, but what it calls has names, and libraries have helpers.
    (
        ";;+deflateInit_;+deflateInit2_;+;+malloc",
        "program+0x13ff calling deflateInit_",
    ),
    (";;+g_strdup;+malloc", "program+0x11ff"),
    (
        ";+qsort;;+deflateInit_;+malloc",
        "program+0x11ff calling deflateInit_",
    ),
    (
        "+start_thread;+inflate_thread;+;+;+malloc",
        "inflate_thread",
    ),
    ("main;+jv_parse;+jv_object;+;+malloc", "jv_object"),
    // Perl and R allocate for what they execute.
    (
        "_start;+perl_run;+Perl_pp_sprintf;+Perl_do_sprintf;+Perl_sv_grow;+Perl_safesysmalloc;+malloc",
        "Perl_do_sprintf (interpreter)",
    ),
    (
        "_start;+Rf_eval;+Rf_applyClosure;*;+Rf_allocVector3;+malloc",
        "cart.so+0x11ff",
    ),
];

/// Dump of one stack. Functions are the program's; those with `+` before their names are in a library of the system,
/// those with `*` in a module of the program. One without more has no symbol.
fn dump(stack: &str) -> String {
    let functions: Vec<_> = stack.split(';').rev().collect();
    let address = |at: usize, name: &str| match name.bytes().next() {
        Some(b'+') => 0x10000 + 0x100 * at,
        Some(b'*') => 0x20000 + 0x100 * at,
        _ => 0x2000 + 0x100 * at,
    };
    let mut text = "--- symbol\nbinary=/usr/bin/program\n".to_owned();
    for (at, function) in functions.iter().enumerate() {
        let name = function.trim_start_matches(['+', '*']);
        if !name.is_empty() {
            text += &format!("{:#018x} {name}\n", address(at, function) - 1);
        }
    }
    let addresses = functions.iter().enumerate();
    let addresses: String = addresses
        .map(|(at, function)| format!(" {:#x}", address(at, function)))
        .collect();
    let counts = "t*: 1: 1024 [0: 0]";
    text + &format!(
        "---\n--- heap\nheap_v2/1\n  {counts}\n@{addresses}\n  {counts}\n\nMAPPED_LIBRARIES:\n\
         00001000-00008000 r-xp 00000000 fe:00 1 /usr/bin/program\n\
         0000f000-00018000 r-xp 00000000 fe:00 2 /usr/lib/x86_64-linux-gnu/libother.so.1\n\
         0001f000-00028000 r-xp 00000000 fe:00 3 /usr/lib/program/modules/cart.so\n"
    )
}

#[test]
fn first_row_is_function_of_program() {
    for (stack, expected) in STACKS {
        let report = report_on(dump(stack).as_bytes(), None, None, &Options::default());
        let text = String::from_utf8(report.expect("it is a good dump").0).expect("it is text");
        let row = text.lines().nth(2).expect("a row");
        assert!(row.ends_with(&format!("  {expected}")), "{stack}:\n{text}");
    }
}
