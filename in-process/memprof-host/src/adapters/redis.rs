//! Redis 4 and later: `loadmodule /path/memory_profile.so [key value …]`.
//!
//! The module has one command, the plugin's name in capitals: `MEMORY_PROFILE dump` sends the message, and the client
//! gets the text of the reply, or an error of one line; with `format=json` it gets the JSON. The command's flags are
//! `admin readonly`. Like every command it runs on Redis' main thread, so Redis waits for a dump. `MEMORY_PROFILE`
//! without arguments lists the messages.
#![expect(unsafe_code, reason = "the API of Redis modules")]

mod later_api;

use std::ffi::{CStr, c_char, c_int, c_long, c_void};
use std::slice;

use log::{Level, LevelFilter};
use memprof_own::LockFreeOnce;
use memprof_plugin_abi::raw::{MEMPROF_INVALID_ARGUMENT, memprof_plugin_entry_t};
use memprof_plugin_abi::{Arguments, Failure};

use super::config::{self, Settings};
use super::host_symbols::to_typed_pointer;
use super::instance::{Adapter, AdapterInstance, instance, plugin_id, start_instance};
use super::log::{ProgramLog, one_line, to_truncated_c_string};
use super::rendered_reply::{RenderedReply, ReplyContent};
use super::{catch_panic, library_copies};
use later_api::LaterApi;

/// redismodule.h, `REDISMODULE_OK`.
const OK: c_int = 0;
/// redismodule.h, `REDISMODULE_ERR`.
const ERR: c_int = 1;
/// redismodule.h, `REDISMODULE_APIVER_1`.
const API_VERSION: c_int = 1;
/// Largest length of a log line in bytes (server.h, `LOG_MAX_LEN`), beyond which Redis truncates it.
const LINE_LIMIT: usize = 1000;
/// Largest length of an error in bytes; the rest is cut off.
const ERROR_LIMIT: usize = 4000;

type Ctx = *mut c_void;
type RedisString = *const c_void;
type Command = unsafe extern "C" fn(Ctx, *const RedisString, c_int) -> c_int;

/// Functions of redismodule.h, under the names in it.
#[derive(Clone, Copy, Debug)]
struct RedisApi {
    set_module_attribs: unsafe extern "C" fn(Ctx, *const c_char, c_int, c_int),
    is_module_name_busy: unsafe extern "C" fn(*const c_char) -> c_int,
    create_command: unsafe extern "C" fn(
        Ctx,
        *const c_char,
        Command,
        *const c_char,
        c_int,
        c_int,
        c_int,
    ) -> c_int,
    string_ptr_len: unsafe extern "C" fn(RedisString, *mut usize) -> *const c_char,
    reply_with_string_buffer: unsafe extern "C" fn(Ctx, *const c_char, usize) -> c_int,
    reply_with_error: unsafe extern "C" fn(Ctx, *const c_char) -> c_int,
    reply_with_array: unsafe extern "C" fn(Ctx, c_long) -> c_int,
    later: LaterApi,
    log: unsafe extern "C" fn(Ctx, *const c_char, *const c_char, ...),
}

type GetApi = unsafe extern "C" fn(*const c_char, *mut *mut c_void) -> c_int;

impl RedisApi {
    /// Looks up Redis' functions in the host. `None` if one is missing that every version has; those of [`LaterApi`]
    /// may be missing.
    ///
    /// # Safety
    /// `ctx` is the context that Redis passes to `RedisModule_OnLoad`.
    unsafe fn find(ctx: Ctx) -> Option<Self> {
        // SAFETY: redismodule.h, `RedisModule_Init`: the context begins with the address of `GetApi`.
        let get_api = unsafe { *ctx.cast::<*mut c_void>() };
        // SAFETY: redismodule.h: a function of this type.
        let get_api: GetApi = unsafe { to_typed_pointer(get_api) }?;
        let find = |name: &CStr| {
            let mut address = std::ptr::null_mut();
            // SAFETY: redismodule.h: stores the function's address, or fails and leaves null.
            unsafe { get_api(name.as_ptr(), &raw mut address) };
            address
        };
        #[expect(clippy::multiple_unsafe_ops_per_block, reason = "one promise for all")]
        // SAFETY: redismodule.h declares functions of these types, since Redis 4.0.
        Some(unsafe {
            Self {
                set_module_attribs: to_typed_pointer(find(c"RedisModule_SetModuleAttribs"))?,
                is_module_name_busy: to_typed_pointer(find(c"RedisModule_IsModuleNameBusy"))?,
                create_command: to_typed_pointer(find(c"RedisModule_CreateCommand"))?,
                string_ptr_len: to_typed_pointer(find(c"RedisModule_StringPtrLen"))?,
                reply_with_string_buffer: to_typed_pointer(find(
                    c"RedisModule_ReplyWithStringBuffer",
                ))?,
                reply_with_error: to_typed_pointer(find(c"RedisModule_ReplyWithError"))?,
                reply_with_array: to_typed_pointer(find(c"RedisModule_ReplyWithArray"))?,
                later: LaterApi::find(find),
                log: to_typed_pointer(find(c"RedisModule_Log"))?,
            }
        })
    }

    /// Returns whether Redis has loaded a module of this name.
    fn is_name_busy(&self, name: &str) -> bool {
        let name = to_truncated_c_string(name, LINE_LIMIT);
        // SAFETY: redismodule.h: a NUL-terminated name.
        unsafe { (self.is_module_name_busy)(name.as_ptr()) != 0 }
    }

    /// Copies the arguments of a call, and replaces bytes that are not UTF-8. Empty if `argv` is null.
    ///
    /// # Safety
    /// `argv` points to `argc` strings of Redis.
    unsafe fn copy_arguments(&self, argv: *const RedisString, argc: c_int) -> Vec<String> {
        let count = usize::try_from(argc).unwrap_or(0);
        if argv.is_null() || count == 0 {
            return Vec::new();
        }
        // SAFETY: not null, and the caller promises `argc` strings.
        let argv = unsafe { slice::from_raw_parts(argv, count) };
        let text = |string: &RedisString| {
            let mut length = 0;
            // SAFETY: redismodule.h: a string that Redis passed to this call.
            let bytes = unsafe { (self.string_ptr_len)(*string, &raw mut length) };
            // SAFETY: redismodule.h: `length` bytes, which are valid during the call.
            let bytes = unsafe { slice::from_raw_parts(bytes.cast::<u8>(), length) };
            String::from_utf8_lossy(bytes).into_owned()
        };
        argv.iter().map(text).collect()
    }

    /// Sends a string to the client. Returns `REDISMODULE_OK`.
    fn reply_bytes(&self, ctx: Ctx, bytes: &[u8]) -> c_int {
        // SAFETY: redismodule.h: the context of the running command; Redis copies the bytes.
        unsafe { (self.reply_with_string_buffer)(ctx, bytes.as_ptr().cast(), bytes.len()) }
    }

    /// Sends a text to the client: several lines as an array, because redis-cli would show one string on one line.
    /// Returns `REDISMODULE_OK`.
    fn reply_text(&self, ctx: Ctx, text: &str) -> c_int {
        let lines: Vec<_> = text.lines().map(str::to_owned).collect();
        match lines.as_slice() {
            [] | [_] => self.reply_bytes(ctx, text.trim_end().as_bytes()),
            lines => self.reply_lines(ctx, lines),
        }
    }

    /// Sends an array of lines to the client. Returns `REDISMODULE_OK`.
    fn reply_lines(&self, ctx: Ctx, lines: &[String]) -> c_int {
        // Redis' reply functions always return `REDISMODULE_OK`.
        // SAFETY: redismodule.h: the context of the running command; the elements follow.
        unsafe { (self.reply_with_array)(ctx, lines.len() as c_long) };
        for line in lines {
            self.reply_bytes(ctx, line.as_bytes());
        }
        OK
    }

    /// Sends an error to the client: the text as one line, of at most [`ERROR_LIMIT`] bytes, after `ERR`. Returns
    /// `REDISMODULE_OK`.
    fn reply_error(&self, ctx: Ctx, text: &str) -> c_int {
        let line = to_truncated_c_string(&format!("ERR {}", one_line(text)), ERROR_LIMIT);
        // SAFETY: redismodule.h: the context of the running command; Redis copies the text.
        unsafe { (self.reply_with_error)(ctx, line.as_ptr()) }
    }
}

static API: LockFreeOnce<RedisApi> = LockFreeOnce::new();

static LOG: ProgramLog = ProgramLog {
    level: LevelFilter::Info,
    sink: write_log_line,
};

const ADAPTER: Adapter = Adapter::without_socket(&LOG);

/// Loads the module. At the start of Redis, a failure would end Redis, so it fails only if a function is missing that
/// every version has. For a client (`MODULE LOAD`), it fails also if the module is loaded already, which changes nothing,
/// or if the plugin could not be created or keeps an older config.
///
/// # Safety
/// Redis calls `RedisModule_OnLoad` with these arguments.
#[doc(hidden)]
pub unsafe fn load_module(
    entry: &'static memprof_plugin_entry_t,
    ctx: Ctx,
    argv: *const RedisString,
    argc: c_int,
) -> c_int {
    catch_panic(ERR, || {
        // SAFETY: the caller promises Redis' context.
        let Some(api) = (unsafe { RedisApi::find(ctx) }) else {
            return ERR;
        };
        let is_reload = API.get().is_some();
        let api = API.get_or_set(api);
        // `MODULE LOAD` of a client may fail, and the log has the reason. At the start of Redis, a failure would end
        // Redis.
        let is_client = api.later.has_clients(ctx);
        if is_client && api.is_name_busy(&plugin_id(entry)) {
            LOG.write_line(Level::Error, &busy_name_text(entry));
            return ERR;
        }
        // SAFETY: the caller promises `argc` strings of Redis.
        let arguments = unsafe { api.copy_arguments(argv, argc) };
        let settings = parse_options(&arguments);
        let before = instance().filter(|instance| instance.creation_failure().is_none());
        let is_changed = before.is_some_and(|before| *before.settings() != settings);
        let instance = start_instance(entry, &ADAPTER, settings);
        if is_client && (instance.creation_failure().is_some() || is_changed) {
            return ERR;
        }
        // After the module was loaded once, the existing command may be its own.
        if !register_module_and_command(api, ctx, instance) && !is_reload {
            let line = format!(
                "the command {} exists already, and stays as it is: this module has none",
                instance.id().to_uppercase()
            );
            LOG.write_line(Level::Warn, &line);
        }
        OK
    })
}

/// Describes why a client cannot load the module, given that a module of its name is loaded.
fn busy_name_text(entry: &'static memprof_plugin_entry_t) -> String {
    if let Some(duplicate) = library_copies::find_duplicate_error(entry) {
        return duplicate.to_string();
    }
    let id = plugin_id(entry);
    match is_plugin_created(entry) {
        true => format!("the module {id} is loaded already, and stays as it is"),
        false => format!(
            "the module {id} is loaded already, and its config stays as it was: MODULE UNLOAD {id}, and load it again"
        ),
    }
}

/// Returns whether the plugin was created, by this copy of the library or another one: a module that is loaded by
/// another path, as an upgrade may be, is another copy. May wait for the lock of all copies.
fn is_plugin_created(entry: &'static memprof_plugin_entry_t) -> bool {
    let is_created = |instance: &AdapterInstance| instance.creation_failure().is_none();
    if instance().is_some_and(is_created) {
        return true;
    }
    let _guard = library_copies::lock_across_copies(entry);
    matches!(library_copies::join_other_copy(entry), Some(Ok(_)))
}

/// Parses the plugin's options, which are keys and values by turns. Fails if the last key has no value, if a key is
/// given twice or has no name, if a value is invalid, or if the config file cannot be read or parsed.
fn parse_options(arguments: &[String]) -> Result<Settings, Failure> {
    let pairs = arguments.chunks(2).map(|pair| match pair {
        [key, value] => Ok((key.as_str(), value.as_str())),
        unpaired => Err(Failure::new(
            MEMPROF_INVALID_ARGUMENT,
            format!(
                "config word {:?} has no value; loadmodule takes key value pairs",
                unpaired.concat()
            ),
        )),
    });
    config::parse_setting_pairs(pairs.collect::<Result<Vec<_>, _>>()?)
}

/// Names the module and creates its command. Returns false if Redis refuses the command, because one of that name
/// exists.
fn register_module_and_command(api: &RedisApi, ctx: Ctx, instance: &AdapterInstance) -> bool {
    // A module that is loaded again under another path needs another name; Redis crashes on a module without a name.
    let names = std::iter::once(instance.id().to_owned())
        .chain((2..).map(|number| format!("{}_{number}", instance.id())));
    let mut names = names.filter(|name| !api.is_name_busy(name));
    let name = to_truncated_c_string(&names.next().expect("there is no end of names"), LINE_LIMIT);
    // The number 1 is the module's own version.
    // SAFETY: redismodule.h: the context of `RedisModule_OnLoad`; Redis copies the name.
    unsafe { (api.set_module_attribs)(ctx, name.as_ptr(), 1, API_VERSION) };
    let command = to_truncated_c_string(&instance.id().to_uppercase(), LINE_LIMIT);
    // SAFETY: redismodule.h: the context of `RedisModule_OnLoad`; the function is in a library that is never unloaded.
    let created = unsafe {
        (api.create_command)(
            ctx,
            command.as_ptr(),
            handle_command,
            c"admin readonly".as_ptr(),
            // First key, last key and step: no argument is a key.
            0,
            0,
            0,
        )
    };
    if created == OK {
        api.later.set_command_categories(ctx, &command);
    }
    created == OK
}

/// Implements the command `MEMORY_PROFILE ARGUMENT…`: sends the arguments as a message. Without arguments or for
/// `HELP`, lists the plugin's messages. Runs on the server's main thread.
unsafe extern "C" fn handle_command(ctx: Ctx, argv: *const RedisString, argc: c_int) -> c_int {
    catch_panic(ERR, || {
        let (Some(api), Some(instance)) = (API.get(), instance()) else {
            return ERR;
        };
        // SAFETY: redismodule.h, `RedisModuleCmdFunc`: `argc` strings.
        let arguments = unsafe { api.copy_arguments(argv, argc) };
        match arguments.get(1..) {
            None | Some([]) => api.reply_lines(ctx, &instance.help_lines()),
            Some([help]) if help.eq_ignore_ascii_case("HELP") => {
                api.reply_lines(ctx, &instance.help_lines())
            }
            Some(arguments) => {
                let message = Arguments::join(arguments.iter().map(String::as_str));
                match instance.send_and_render(message.as_bytes()) {
                    RenderedReply {
                        is_success: true,
                        body: ReplyContent::Text(text),
                    } => api.reply_text(ctx, &text),
                    RenderedReply {
                        is_success: true,
                        body: ReplyContent::Bytes(bytes),
                    } => api.reply_bytes(ctx, &bytes),
                    RenderedReply {
                        is_success: false,
                        body: ReplyContent::Text(text),
                    } => api.reply_error(ctx, &text),
                    RenderedReply {
                        is_success: false,
                        body: ReplyContent::Bytes(bytes),
                    } => api.reply_error(ctx, &String::from_utf8_lossy(&bytes)),
                }
            }
        }
    })
}

/// Writes a line to Redis' log, from any thread. Drops it before the module is loaded.
fn write_log_line(level: Level, text: &str) {
    let level = match level {
        Level::Error | Level::Warn => c"warning",
        Level::Info => c"notice",
        Level::Debug | Level::Trace => c"debug",
    };
    let text = to_truncated_c_string(&format!("memprof: {text}"), LINE_LIMIT);
    if let Some(api) = API.get() {
        // SAFETY: redismodule.h: the text is an argument, not a format; without a context any thread may log.
        unsafe {
            (api.log)(
                std::ptr::null_mut(),
                level.as_ptr(),
                c"%s".as_ptr(),
                text.as_ptr(),
            )
        };
    }
}

#[doc(hidden)]
#[macro_export]
macro_rules! __export_redis {
    ($how:ident, $entry:path) => {
        /// Entry point that Redis calls after loading this library.
        ///
        /// # Safety
        /// Only Redis calls it, according to redismodule.h.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)]
        pub unsafe extern "C" fn RedisModule_OnLoad(
            ctx: *mut ::std::ffi::c_void,
            argv: *const *const ::std::ffi::c_void,
            argc: ::std::ffi::c_int,
        ) -> ::std::ffi::c_int {
            // SAFETY: the arguments of Redis, unchanged.
            unsafe { $crate::adapters::redis::load_module(&$entry, ctx, argv, argc) }
        }
    };
}
