//! Finds the TCP ports on which a process listens.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// `TCP_LISTEN` of `net/tcp_states.h`.
const LISTEN_STATE: &str = "0A";

/// A listening TCP socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Listener {
    /// Address to connect to: the loopback address if the socket listens on all addresses.
    pub(super) address: SocketAddr,
    /// Inode of the socket, which differs for a later socket with the same address.
    inode: u64,
}

/// Lists the listening sockets of a process in this network namespace. Fails if its descriptors cannot be read.
pub(super) fn list_listeners(pid: u32) -> io::Result<Vec<Listener>> {
    let mut sockets = HashSet::new();
    for descriptor in fs::read_dir(format!("/proc/{pid}/fd"))? {
        // The link of a descriptor that is closed meanwhile cannot be read.
        let link = fs::read_link(descriptor?.path()).unwrap_or_default();
        sockets.extend(link.to_str().and_then(parse_socket_link));
    }
    let mut listeners = list_all_listeners()?;
    listeners.retain(|listener| sockets.contains(&listener.inode));
    Ok(listeners)
}

/// Returns whether any process in this network namespace listens on `port` of a loopback address or of all addresses.
/// False if the kernel's tables cannot be read.
pub(super) fn is_port_in_use(port: u16) -> bool {
    let is_on_port = |listener: &Listener| {
        listener.address.ip().is_loopback() && listener.address.port() == port
    };
    list_all_listeners().is_ok_and(|all| all.iter().any(is_on_port))
}

/// Lists the listening sockets of all processes in this network namespace. Fails if the kernel's tables cannot be read.
fn list_all_listeners() -> io::Result<Vec<Listener>> {
    let mut all = Vec::new();
    for table in ["tcp", "tcp6"] {
        match File::open(format!("/proc/self/net/{table}")) {
            // The table has a line for each connection of the machine, so it is not read as a whole.
            Ok(file) => {
                for line in BufReader::new(file).lines() {
                    all.extend(parse_listener(&line?));
                }
            }
            // A kernel without IPv6.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(all)
}

/// Parses a link such as `socket:[4711]`; returns the inode, `None` for links of another form.
fn parse_socket_link(link: &str) -> Option<u64> {
    let inode = link.strip_prefix("socket:[")?.strip_suffix(']')?;
    inode.parse().ok()
}

/// Parses a line of /proc/net/tcp or tcp6 (proc(5)): `0: 0100007F:240D 00000000:0000 0A 00000000:00000000
/// 00:00000000 00000000  1000  0 15019218 1 …`. `None` unless the socket listens. A socket that listens on all
/// addresses is given the loopback address.
fn parse_listener(line: &str) -> Option<Listener> {
    let mut words = line.split_ascii_whitespace();
    // Columns 2, 4 and 10.
    let local = words.nth(1)?;
    let state = words.nth(1)?;
    let inode = words.nth(5)?.parse().ok()?;
    let (ip, port) = local.split_once(':')?;
    let ip = match parse_ip(ip)?.to_canonical() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    let address = SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?);
    (state == LISTEN_STATE).then_some(Listener { address, inode })
}

/// Parses an address of 8 or 32 hexadecimal digits; `None` if malformed. The kernel writes each four bytes as a
/// number in this machine's byte order.
fn parse_ip(digits: &str) -> Option<IpAddr> {
    let word = |index: usize| {
        let digits = digits.get(index * 8..index * 8 + 8)?;
        Some(u32::from_str_radix(digits, 16).ok()?.to_ne_bytes())
    };
    match digits.len() {
        8 => Some(Ipv4Addr::from(word(0)?).into()),
        32 => {
            let words = [word(0)?, word(1)?, word(2)?, word(3)?];
            let bytes: [u8; 16] = words.concat().try_into().ok()?;
            Some(Ipv6Addr::from(bytes).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn lines_of_each_kind_are_parsed() {
        let check = |line: &str, expected: Option<(&str, u64)>| {
            let found = parse_listener(line).map(|found| (found.address.to_string(), found.inode));
            let expected = expected.map(|(address, inode)| (address.to_owned(), inode));
            assert_eq!(found, expected, "{line}");
        };
        let rest =
            "00000000:00000000 00:00000000 00000000     0        0 15019218 1 0 100 0 0 10 0";
        let with = |local: &str, state: &str| {
            let peer = "00000000:0000";
            format!("   0: {local} {peer} {state} {rest}")
        };
        check(
            &with("0100007F:240D", "0A"),
            Some(("127.0.0.1:9229", 15_019_218)),
        );
        check(
            &with("00000000:240D", "0A"),
            Some(("127.0.0.1:9229", 15_019_218)),
        );
        check(&with("0100007F:240D", "01"), None);
        check(
            &with("00000000000000000000000001000000:240D", "0A"),
            Some(("[::1]:9229", 15_019_218)),
        );
        check(
            &with("00000000000000000000000000000000:0050", "0A"),
            Some(("[::1]:80", 15_019_218)),
        );
        check(
            &with("0000000000000000FFFF00000100007F:240D", "0A"),
            Some(("127.0.0.1:9229", 15_019_218)),
        );
        check(&with("0100007:240D", "0A"), None);
        check(
            "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode",
            None,
        );
        check("", None);
    }

    #[test]
    fn own_ports_are_found() {
        let of = |address: SocketAddr| {
            let own = list_listeners(std::process::id()).unwrap();
            own.into_iter().filter(|own| own.address == address).count()
        };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        assert_eq!(of(address), 1);
        assert!(is_port_in_use(address.port()));
        drop(listener);
        assert_eq!(of(address), 0);
    }
}
