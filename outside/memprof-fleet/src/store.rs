//! Store: objects by name, in a directory or on S3. All calls block.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use bytes::Bytes;
use futures::TryStreamExt;
use memprof_output::{UNREACHABLE, USAGE, with_exit_code};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{
    BackoffConfig, ClientOptions, Error, ObjectStore, ObjectStoreExt, PutMode, PutOptions,
    RetryConfig,
};
use rustix::rand::GetRandomFlags;
use sha2::{Digest, Sha256};
use tokio::runtime::Runtime;

use crate::s3_errors::{NOT_S3, plain_s3_error, s3_remedy};
use crate::time::{Instant, Uptime};
use crate::tls::is_untrusted_certificate_error;

/// Longest time of a request. The data is still on this machine's disk, and is sent again later.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);
/// Longest time to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Retries of a failed request.
const MAX_RETRIES: usize = 3;
/// Name of the object with the store's id.
const ID_OBJECT: &str = "store-id";
/// Length of the store's id in bytes.
const ID_BYTES: usize = 16;

/// Opened store. Opening sends no request.
#[derive(Debug)]
pub(crate) struct ProfileStore {
    url: String,
    objects: Arc<dyn ObjectStore>,
    runtime: Runtime,
}

/// Object of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Object {
    pub(crate) name: String,
    pub(crate) size: u64,
    /// Time of its last write, by the store's clock.
    pub(crate) written: Instant,
}

/// Outcome of creating an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CreateOutcome {
    /// It was created.
    New,
    /// An object of that name exists, or the server says so.
    Exists,
}

/// Returns whether the first part of an S3 path can name a bucket: it consists of letters, digits, `.`, `-` and `_`,
/// because in some addresses the bucket's name is part of the host name.
fn starts_with_bucket(path: &str) -> bool {
    let bucket = path.split('/').next().unwrap_or_default();
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    !bucket.is_empty() && bucket.bytes().all(is_allowed)
}

impl ProfileStore {
    /// Opens a store by its URL, `file:///DIRECTORY` or `s3://BUCKET/PREFIX`. Creates the directory if it is missing;
    /// sends no request to S3. Fails if the URL or the environment's settings are invalid (exit code 2), or the
    /// directory cannot be created.
    pub(crate) fn open(url: &str) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let objects = match url.split_once("://") {
            Some(("file", path)) if path.starts_with('/') => open_directory(path)?,
            Some(("s3", path)) if starts_with_bucket(path) => open_s3(url, path)?,
            _ => {
                let message =
                    format!("{url:?} is not a store: give file:///DIRECTORY or s3://BUCKET/PREFIX");
                return Err(with_exit_code(USAGE, message));
            }
        };
        Ok(Self {
            url: url.to_owned(),
            objects,
            runtime,
        })
    }

    /// Returns the URL by which the store was opened.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Returns whether the store is a directory of this machine.
    pub(crate) fn is_local(&self) -> bool {
        self.url.starts_with("file://")
    }

    /// Lists the objects below the folder `prefix`, sorted by name. Fails if the store cannot be reached (exit code 3).
    pub(crate) fn list(&self, prefix: &str) -> anyhow::Result<Vec<Object>> {
        let prefix = Path::from(prefix);
        let listed = self.objects.list(Some(&prefix)).map_ok(|meta| Object {
            name: meta.location.to_string(),
            size: meta.size,
            written: Instant(meta.last_modified.timestamp_millis()),
        });
        let listed = self.runtime.block_on(listed.try_collect());
        let mut objects: Vec<_> =
            listed.map_err(|error| self.store_error("list objects", error))?;
        // The page of a web server looks like an empty list, too.
        if objects.is_empty() && !self.is_local() {
            self.require_s3()?;
        }
        objects.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(objects)
    }

    /// Checks that the server is not a web server, whose page looks like an empty list. The store's id shows it: a web
    /// server replies with a page for the object's name, too, but of another size. A store without an id counts as one
    /// of S3. Fails with exit code 3.
    fn require_s3(&self) -> anyhow::Result<()> {
        match self.find_object(ID_OBJECT)? {
            Some(object) if object.size != ID_BYTES as u64 => {
                let message = format!("{}: {NOT_S3}", self.url);
                Err(with_exit_code(UNREACHABLE, message))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Reads a whole object of at most `limit` bytes. Fails if the object is larger or does not exist, or the store
    /// cannot be reached (exit code 3).
    pub(crate) fn read(&self, name: &str, limit: u64) -> anyhow::Result<Bytes> {
        let read = async {
            let found = self.objects.get(&Path::from(name)).await?;
            let size = found.range.end - found.range.start;
            if size > limit {
                return Ok(Err(size));
            }
            found.bytes().await.map(Ok)
        };
        let read = self.runtime.block_on(read);
        let read = read.map_err(|error| self.store_error(&format!("read {name}"), error))?;
        read.map_err(|size| {
            anyhow!(
                "{}: {name} is too large: it has {size} bytes, and at most {limit} are read",
                self.url
            )
        })
    }

    /// Reads `length` bytes of an object from the offset `start` on. Fails if the object does not exist, or the store
    /// cannot be reached (exit code 3).
    pub(crate) fn read_range(&self, name: &str, start: u64, length: u64) -> anyhow::Result<Bytes> {
        let path = Path::from(name);
        let read = self.objects.get_range(&path, start..start + length);
        self.runtime
            .block_on(read)
            .map_err(|error| self.store_error(&format!("read {name}"), error))
    }

    /// Creates an object, unless an object of that name exists. Returns whether it was created. Fails if the store
    /// cannot be reached (exit code 3).
    pub(crate) fn create(&self, name: &str, bytes: Bytes) -> anyhow::Result<CreateOutcome> {
        let options = PutOptions {
            mode: PutMode::Create,
            ..PutOptions::default()
        };
        let path = Path::from(name);
        let put = self.objects.put_opts(&path, bytes.into(), options);
        match self.runtime.block_on(put) {
            Ok(_) => Ok(CreateOutcome::New),
            // S3 replies to a race with status 409 or 412.
            Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => {
                Ok(CreateOutcome::Exists)
            }
            Err(error) => Err(self.store_error(&format!("write {name}"), error)),
        }
    }

    /// Queries the size and the time of an object. `None` if it does not exist. Fails if the store cannot be reached
    /// (exit code 3).
    pub(crate) fn find_object(&self, name: &str) -> anyhow::Result<Option<Object>> {
        match self.runtime.block_on(self.objects.head(&Path::from(name))) {
            Ok(meta) => Ok(Some(Object {
                name: name.to_owned(),
                size: meta.size,
                written: Instant(meta.last_modified.timestamp_millis()),
            })),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.store_error(&format!("look at {name}"), error)),
        }
    }

    /// Reads the store's id, by which agents notice that a store was replaced or emptied: the random bytes in the
    /// object `store-id`. Creates the object if it is missing. Fails if the store cannot be reached (exit code 3).
    pub(crate) fn read_or_create_id(&self) -> anyhow::Result<Bytes> {
        if self.find_object(ID_OBJECT)?.is_none() {
            let mut random = [0; ID_BYTES];
            rustix::rand::getrandom(&mut random, GetRandomFlags::empty())?;
            // If another agent creates it first, its bytes are read below.
            self.create(ID_OBJECT, Bytes::copy_from_slice(&random))?;
        }
        self.read(ID_OBJECT, ID_BYTES as u64)
    }

    /// Reads the store's clock: creates an object, and returns the time at which it was written according to the store.
    /// Deletes the object. Fails if a request fails (exit code 3).
    pub(crate) fn read_clock(&self) -> anyhow::Result<Instant> {
        self.with_temporary_object("clock", |name| {
            self.create(name, Bytes::from_static(b"now"))?;
            let object = self.find_object(name)?;
            let object = object
                .with_context(|| format!("{}: {name} was written and is not there", self.url))?;
            Ok(object.written)
        })
    }

    /// Calls `test` with the name of an object in `folder` that does not exist. Then deletes that object, also if
    /// `test` fails: a request that fails may have created it. Fails if `test` fails, or the object cannot be deleted
    /// (exit code 3).
    pub(crate) fn with_temporary_object<T>(
        &self,
        folder: &str,
        test: impl FnOnce(&str) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let ticks = Uptime::now().0;
        let name = format!(
            "{folder}/{}-{}-{ticks}",
            Instant::now().0,
            std::process::id()
        );
        let outcome = test(&name);
        let deleted = self.delete(&name);
        // The first failure is probably the cause of the other one.
        outcome.and_then(|outcome| deleted.map(|()| outcome))
    }

    /// Deletes an object. Does nothing if it does not exist. Fails if the store cannot be reached (exit code 3).
    pub(crate) fn delete(&self, name: &str) -> anyhow::Result<()> {
        match self
            .runtime
            .block_on(self.objects.delete(&Path::from(name)))
        {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.store_error(&format!("delete {name}"), error)),
        }
    }

    /// Returns the error of a request (exit code 3), with a remedy if the store is not local. `act` says which act
    /// failed, such as "list objects".
    fn store_error(&self, act: &str, error: Error) -> anyhow::Error {
        let error = anyhow::Error::from(error);
        // The root cause is enough, because each error repeats the text of its cause.
        let cause = error.root_cause().to_string();
        let remedy = match self.is_local() {
            true => String::new(),
            false if is_untrusted_certificate_error(&cause) => {
                "; SSL_CERT_FILE must name a file with the certificate that signed the server's"
                    .to_owned()
            }
            false => format!("; {}", s3_remedy(&cause)),
        };
        let message = format!(
            "{}: failed to {act}: {}{remedy}",
            self.url,
            plain_s3_error(&cause)
        );
        with_exit_code(UNREACHABLE, message)
    }
}

/// Opens the directory `path` as a store, and creates it if it is missing. Writes wait until they are on the disk.
fn open_directory(path: &str) -> anyhow::Result<Arc<dyn ObjectStore>> {
    let failed = || format!("failed to open the store {path}");
    std::fs::create_dir_all(path).with_context(failed)?;
    let files = LocalFileSystem::new_with_prefix(path).with_context(failed)?;
    Ok(Arc::new(files.with_fsync(true)))
}

/// Opens a bucket or, if `path` has a prefix, the part of the bucket below it. Takes credentials, endpoint and region
/// from the usual environment variables: `AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL`, … Fails if the URL or a setting is
/// invalid.
fn open_s3(url: &str, path: &str) -> anyhow::Result<Arc<dyn ObjectStore>> {
    // Installs the cryptography for TLS. Fails only if a provider is installed already, which serves as well.
    drop(rustls::crypto::ring::default_provider().install_default());
    let retry = RetryConfig {
        max_retries: MAX_RETRIES,
        retry_timeout: REQUEST_TIMEOUT,
        backoff: BackoffConfig::default(),
    };
    let settings = s3_settings(std::env::vars_os())?;
    let allows_http = settings
        .iter()
        .any(|(name, value)| name == "AWS_ALLOW_HTTP" && is_true(value));
    let client = ClientOptions::new()
        .with_timeout(REQUEST_TIMEOUT)
        .with_connect_timeout(CONNECT_TIMEOUT)
        .with_allow_http(allows_http);
    let mut builder = AmazonS3Builder::new();
    for (name, value) in &settings {
        if let Ok(key) = name.to_ascii_lowercase().parse::<AmazonS3ConfigKey>() {
            builder = builder.with_config(key, value);
        }
    }
    let bucket = builder
        .with_url(url)
        .with_client_options(client)
        .with_retry(retry)
        .build()
        .with_context(|| format!("failed to open the store {url}"))?;
    Ok(match path.split_once('/') {
        Some((_, prefix)) if !prefix.is_empty() => Arc::new(PrefixStore::new(bucket, prefix)),
        _ => Arc::new(bucket),
    })
}

/// Returns the S3 settings in the environment: names and values. Trims blanks and line ends around a value, as files
/// and secrets have them; an empty value counts as not set. Fails for invalid characters within a value, and for an
/// endpoint that is no HTTP address (exit code 2), because the libraries panic on some of them.
fn s3_settings(
    environment: impl Iterator<Item = (OsString, OsString)>,
) -> anyhow::Result<Vec<(String, String)>> {
    let mut settings = Vec::new();
    for (name, value) in environment {
        let Some(name) = name.to_str().filter(|name| name.starts_with("AWS_")) else {
            continue;
        };
        if name
            .to_ascii_lowercase()
            .parse::<AmazonS3ConfigKey>()
            .is_err()
        {
            continue;
        }
        let invalid =
            |reason: &str| with_exit_code(USAGE, format!("the environment's {name} {reason}"));
        let value = value.to_str().map(str::trim);
        let value = value.ok_or_else(|| invalid("is no UTF-8 text"))?;
        if value.is_empty() {
            continue;
        }
        // The secret is sent in no header, and S3 servers other than Amazon's accept any text for it.
        let is_secret = name == "AWS_SECRET_ACCESS_KEY";
        let is_invalid =
            |c: char| c.is_control() || !is_secret && (c.is_whitespace() || !c.is_ascii());
        if value.contains(is_invalid) {
            return Err(invalid(
                "holds a blank, a line end or a character that is not of ASCII in its middle",
            ));
        }
        if name.contains("ENDPOINT") {
            let url = reqwest::Url::parse(value).ok();
            let is_http = |url: &reqwest::Url| ["http", "https"].contains(&url.scheme());
            if !url.is_some_and(|url| is_http(&url) && url.has_host()) {
                return Err(invalid(
                    "is no address: give https://HOST or http://HOST:PORT",
                ));
            }
        }
        settings.push((name.to_owned(), value.to_owned()));
    }
    Ok(settings)
}

/// Returns whether a value of a setting means true: 1, true, yes or on, in upper or lower case.
fn is_true(value: &str) -> bool {
    ["1", "true", "yes", "on"]
        .iter()
        .any(|word| value.eq_ignore_ascii_case(word))
}

/// Returns the name of a file with these bytes: the first 16 bytes of their SHA-256 in hex.
pub(crate) fn file_name_from_content(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest[..16]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_without_a_bucket_is_a_usage_error() {
        for url in [
            "s3://",
            "s3:///x",
            "s3://a b",
            "s3://ü/x",
            "gs://x",
            "file://x",
            "",
        ] {
            let error = ProfileStore::open(url).err().unwrap();
            assert_eq!(crate::exit_code_of(&error), USAGE, "{url}");
            let text = error.to_string();
            assert!(
                text.contains("give file:///DIRECTORY or s3://BUCKET"),
                "{text}"
            );
        }
        assert!(starts_with_bucket("heap-1.prod_x/of/day"));
    }

    #[test]
    fn malformed_s3_settings_are_trimmed_or_refused() {
        let check = |name: &str, value: &str, expected: Result<Option<&str>, &str>| {
            let found = s3_settings([(name.into(), value.into())].into_iter());
            let found = found.map(|found| found.into_iter().next().map(|(_, value)| value));
            match (found, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found.as_deref(), expected, "{value:?}"),
                (Err(error), Err(part)) => {
                    assert_eq!(crate::exit_code_of(&error), USAGE);
                    assert!(error.to_string().contains(part), "{error}");
                }
                (found, _) => panic!("{name}={value:?}: {found:?}"),
            }
        };
        check("AWS_ACCESS_KEY_ID", "key\n", Ok(Some("key")));
        check("AWS_SECRET_ACCESS_KEY", " a/b+c ", Ok(Some("a/b+c")));
        check("AWS_SECRET_ACCESS_KEY", "of words ", Ok(Some("of words")));
        check("AWS_SESSION_TOKEN", "token\r\n", Ok(Some("token")));
        check("AWS_REGION", "", Ok(None));
        check("AWS_REGION", " \n", Ok(None));
        check("AWS_REGION", "eu west", Err("AWS_REGION"));
        check(
            "AWS_SECRET_ACCESS_KEY",
            "a\nb",
            Err("AWS_SECRET_ACCESS_KEY"),
        );
        check("AWS_SESSION_TOKEN", "tokén", Err("AWS_SESSION_TOKEN"));
        check(
            "AWS_ENDPOINT_URL",
            "http://s3:9000 ",
            Ok(Some("http://s3:9000")),
        );
        for wrong in ["s3:9000", "s3", "http://", "ftp://s3", "https://a:b:c"] {
            check("AWS_ENDPOINT_URL", wrong, Err("AWS_ENDPOINT_URL"));
        }
        check("AWS_SOMETHING_ELSE", "a b", Ok(None));
    }

    #[test]
    fn store_that_is_emptied_or_replaced_has_other_id() {
        let check = |what: &str, change: fn(&std::path::Path), is_same: bool| {
            let directory = tempfile::tempdir().unwrap();
            let root = directory.path().join("store");
            let url = format!("file://{}", root.display());
            let store = ProfileStore::open(&url).unwrap();
            store.create("samples/a", Bytes::from_static(b"a")).unwrap();
            let id = store.read_or_create_id().unwrap();
            change(&root);
            let again = ProfileStore::open(&url)
                .unwrap()
                .read_or_create_id()
                .unwrap();
            assert_eq!(again == id, is_same, "{what}");
        };
        let empty = |root: &std::path::Path| {
            std::fs::remove_dir_all(root).unwrap();
            std::fs::create_dir(root).unwrap();
        };
        check("nothing", |_| (), true);
        check(
            "a file is gone",
            |root| std::fs::remove_file(root.join("samples/a")).unwrap(),
            true,
        );
        check("emptied", empty, false);
        check(
            "replaced",
            |root| {
                std::fs::rename(root, root.with_extension("old")).unwrap();
                std::fs::create_dir(root).unwrap();
            },
            false,
        );
        check(
            "moved",
            |root| {
                let old = root.with_extension("old");
                std::fs::rename(root, &old).unwrap();
                std::fs::rename(&old, root).unwrap();
            },
            true,
        );
    }

    #[test]
    fn temporary_object_is_deleted_after_failure() {
        let check = |what: &str, test: fn(&ProfileStore, &str) -> anyhow::Result<()>| {
            let directory = tempfile::tempdir().unwrap();
            let store = ProfileStore::open(&format!("file://{}", directory.path().display()));
            let store = store.unwrap();
            let outcome = store.with_temporary_object("doctor", |name| test(&store, name));
            assert_eq!(
                outcome.map_err(|error| error.to_string()),
                Err("no".to_owned())
            );
            assert!(store.list("doctor").unwrap().is_empty(), "{what}");
        };
        check("nothing was created", |_, _| Err(anyhow!("no")));
        check("it was created", |store, name| {
            store.create(name, Bytes::from_static(b"x"))?;
            Err(anyhow!("no"))
        });
    }

    #[test]
    fn object_above_limit_is_not_read() {
        let directory = tempfile::tempdir().unwrap();
        let store = ProfileStore::open(&format!("file://{}", directory.path().display())).unwrap();
        store.create("x", Bytes::from_static(b"seven b")).unwrap();
        assert_eq!(store.read("x", 7).unwrap(), "seven b");
        let error = store.read("x", 6).unwrap_err().to_string();
        assert!(
            error.contains("x is too large: it has 7 bytes, and at most 6"),
            "{error}"
        );
        // An agent that finds another's file there does not take it for an id.
        let id = directory.path().join(ID_OBJECT);
        std::fs::File::create(id).unwrap().set_len(3 << 30).unwrap();
        let error = store.read_or_create_id().unwrap_err().to_string();
        assert!(error.contains("store-id is too large"), "{error}");
    }

    #[test]
    fn is_true_accepts_usual_words() {
        assert!(["1", "true", "TRUE", "yes"].into_iter().all(is_true));
        assert!(!["0", "false", "", "maybe"].into_iter().any(is_true));
    }
}
