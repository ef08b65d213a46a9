//! Options for the address of a server, and for its access rules.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use tokio::net::TcpListener;

use crate::access::{Access, AccessRule};
use crate::base_url::BaseUrl;
use crate::listen_address::ListenAddress;
use crate::listener::Listener;
use crate::token::{Token, TokenError};
use crate::trusted_proxy::ProxyNetwork;

/// Address and access rules of a server.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "args", derive(clap::Args))]
pub struct ListenOptions {
    /// Listen on ADDRESS: HOST:PORT, :PORT for every interface, or PORT for this machine alone; one
    /// that other machines can reach needs --allow-remote and --token-file
    #[cfg_attr(
        feature = "args",
        arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7070")
    )]
    pub listen: ListenAddress,

    /// Listen on this Unix socket instead, for this user alone
    #[cfg_attr(
        feature = "args",
        arg(long, value_name = "PATH", conflicts_with = "listen")
    )]
    pub socket: Option<PathBuf>,

    /// Allow an address that other machines can reach
    #[cfg_attr(feature = "args", arg(long, requires = "token_file"))]
    pub allow_remote: bool,

    /// Answer only clients that send the token in this file, as `Authorization: Bearer TOKEN` or below
    /// /t/TOKEN/ [default: you and root need no token; other users need the one in the printed
    /// address]
    #[cfg_attr(feature = "args", arg(long, value_name = "FILE"))]
    pub token_file: Option<PathBuf>,

    /// A name by which clients call this server, besides localhost; may be repeated
    #[cfg_attr(feature = "args", arg(long, value_name = "NAME"))]
    pub allow_host: Vec<String>,

    /// The address, with its path, at which a proxy serves this server
    #[cfg_attr(feature = "args", arg(long, value_name = "URL"))]
    pub base_url: Option<BaseUrl>,

    /// Believe the X-Forwarded-* headers of proxies at this address or network; may be repeated
    #[cfg_attr(feature = "args", arg(long, value_name = "CIDR"))]
    pub trust_proxy: Vec<ProxyNetwork>,
}

/// Reason why a server cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Other machines can reach the address, which the options do not allow.
    #[error(
        "{0} can be reached by other machines: add --allow-remote --token-file FILE, or listen on \
         127.0.0.1"
    )]
    Exposed(SocketAddr),
    /// The token is invalid.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The kernel has no random bytes for a token.
    #[error("failed to make a token: {0}")]
    Random(#[source] io::Error),
    /// Listening at the address or path failed.
    #[error("failed to listen at {0}: {1}")]
    Listen(String, #[source] io::Error),
}

impl ListenOptions {
    /// Returns the access rules. Clients with the token are allowed or, without a token file, this user and root. They
    /// may call the server by its listening address, by its host name, and by the names in `allow_host`.
    ///
    /// # Errors
    /// Other machines can reach the address, and `allow_remote` is not set; or the token file cannot be used.
    pub fn access(&self) -> Result<Access, ListenError> {
        let listen = self.listen.socket;
        let is_local = self.socket.is_some() || listen.ip().is_loopback();
        if !is_local && !self.allow_remote {
            return Err(ListenError::Exposed(listen));
        }
        let mut names = self.allow_host.clone();
        names.extend(self.listen.host_name.clone());
        if !listen.ip().is_unspecified() {
            names.push(format_without_port(listen));
        }
        let token = self.token_file.as_deref().map(Token::read).transpose()?;
        let admits = token.map_or(AccessRule::User(None), AccessRule::Bearer);
        Ok(Access {
            names,
            base_url: self.base_url.clone(),
            trust_proxy: self.trust_proxy.clone(),
            admits,
        })
    }

    /// Like [`access`](Self::access), but if the server listens on TCP without a token file, generates a token, which
    /// lets other users in. Returns the rules and the text of the new token, which is stored nowhere; `None` if no
    /// token was generated.
    ///
    /// # Errors
    /// The errors of [`access`](Self::access), or the kernel has no random bytes.
    pub fn access_with_new_token(&self) -> Result<(Access, Option<String>), ListenError> {
        let mut access = self.access()?;
        if self.socket.is_some() || self.token_file.is_some() {
            return Ok((access, None));
        }
        let (token, text) = Token::generate().map_err(ListenError::Random)?;
        access.admits = AccessRule::User(Some(token));
        Ok((access, Some(text)))
    }

    /// Starts to listen at the Unix socket or, without one, at the TCP address. Returns the listener and a text for
    /// people that says how to connect: a URL, with `token` in its path if there is one, or a curl command for a Unix
    /// socket.
    ///
    /// # Errors
    /// The address or the path cannot be used.
    pub async fn listen(&self, token: Option<&str>) -> Result<(Listener, String), ListenError> {
        if let Some(path) = &self.socket {
            let name = path.display().to_string();
            let listener = Listener::bind_unix(path);
            let listener = listener.map_err(|error| ListenError::Listen(name.clone(), error))?;
            let place = format!("at {name}: curl --unix-socket {name} http://localhost/");
            return Ok((listener, place));
        }
        let failed = |error| ListenError::Listen(self.listen.to_string(), error);
        let listener = TcpListener::bind(self.listen.socket)
            .await
            .map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let prefix = token.map(|token| format!("t/{token}/"));
        let place = format!("http://{address}/{}", prefix.unwrap_or_default());
        Ok((Listener::from_tcp(listener), place))
    }
}

/// Formats an address without its port, as in a `Host` header: IPv6 in brackets.
fn format_without_port(address: SocketAddr) -> String {
    match address {
        SocketAddr::V4(address) => address.ip().to_string(),
        SocketAddr::V6(address) => format!("[{}]", address.ip()),
    }
}
