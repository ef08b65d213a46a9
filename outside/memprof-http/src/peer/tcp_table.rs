//! Reads the kernel's tables of TCP sockets (`proc_pid_net(5)`), line by line.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::net::{IpAddr, SocketAddr};

use super::Socket;

/// Number of times that the tables are read before a socket counts as missing: a line can be skipped while other
/// sockets open and close.
const ATTEMPTS: usize = 3;

/// Searches /proc for the TCP socket that is bound to `own` and connected to `other`. `None` if it is in no table after
/// [`ATTEMPTS`] searches: one search can skip a line while other sockets open and close. Blocks.
pub(super) fn find_socket(own: SocketAddr, other: SocketAddr) -> io::Result<Option<Socket>> {
    for _ in 0..ATTEMPTS {
        if let (Some(own), Some(other)) =
            (format_table_address_v4(own), format_table_address_v4(other))
            && let Some(socket) = find_socket_in_table("/proc/net/tcp", &own, &other)?
        {
            return Ok(Some(socket));
        }
        // A program may reach an IPv4 address through an IPv6 socket.
        if let Some(socket) = find_socket_in_table(
            "/proc/net/tcp6",
            &format_table_address_v6(own),
            &format_table_address_v6(other),
        )? {
            return Ok(Some(socket));
        }
    }
    Ok(None)
}

/// Searches the table at `path` for a socket with both formatted addresses. `None` if the table has no such line, the
/// line is malformed, or the kernel lacks the table.
fn find_socket_in_table(path: &str, own: &str, other: &str) -> io::Result<Option<Socket>> {
    match File::open(path) {
        Ok(table) => find_socket_in_lines(BufReader::with_capacity(256 << 10, table), own, other),
        // The kernel has no IPv6.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Searches the lines of a table for a socket with both formatted addresses. `None` if there is no such line, or the
/// line is malformed.
fn find_socket_in_lines(
    mut table: impl BufRead,
    own: &str,
    other: &str,
) -> io::Result<Option<Socket>> {
    let mut line = String::new();
    while {
        line.clear();
        table.read_line(&mut line)? > 0
    } {
        // The first field is the number of the line.
        let mut fields = line.split_ascii_whitespace().skip(1);
        if fields.next() == Some(own) && fields.next() == Some(other) {
            return Ok(parse_socket(fields));
        }
    }
    Ok(None)
}

/// Parses the fields after the addresses: state, queues, timer, retransmits, uid, timeout, inode. `None` if one is
/// missing or malformed.
fn parse_socket<'a>(mut fields: impl Iterator<Item = &'a str>) -> Option<Socket> {
    Some(Socket {
        state: u8::from_str_radix(fields.next()?, 16).ok()?,
        uid: fields.nth(3)?.parse().ok()?,
        inode: fields.nth(1)?.parse().ok()?,
    })
}

/// Formats an address as in the table of IPv4: `0100007F:1F90`. The kernel prints the four bytes as one number in its
/// own byte order. `None` for an IPv6 address.
fn format_table_address_v4(address: SocketAddr) -> Option<String> {
    let IpAddr::V4(ip) = address.ip() else {
        return None;
    };
    let word = u32::from_ne_bytes(ip.octets());
    Some(format!("{word:08X}:{:04X}", address.port()))
}

/// Formats an address as in the table of IPv6: as four numbers of four bytes, each in the kernel's byte order. An IPv4
/// address becomes an IPv4-mapped one.
fn format_table_address_v6(address: SocketAddr) -> String {
    let octets = match address.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    };
    let (words, _) = octets.as_chunks::<4>();
    let words = words.iter().map(|word| u32::from_ne_bytes(*word));
    let words: String = words.map(|word| format!("{word:08X}")).collect();
    format!("{words}:{:04X}", address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n";

    fn line(own: &str, other: &str, uid: u32) -> String {
        format!(
            "   1: {own} {other} 0A 00000000:00000001 00:00000002 00000003 {uid:5}        4 77 1 0 20 4 30 10 -1\n"
        )
    }

    #[test]
    fn line_with_both_addresses_is_found() {
        const OWN: &str = "0100007F:D431";
        const OTHER: &str = "0100007F:1B9E";
        let check = |lines: &[String], uid: Option<u32>| {
            let table = HEADER.to_owned() + &lines.concat();
            let expected = uid.map(|uid| Socket {
                state: 10,
                uid,
                inode: 77,
            });
            let found = find_socket_in_lines(table.as_bytes(), OWN, OTHER).unwrap();
            assert_eq!(found, expected, "{table}");
        };
        let own = line(OWN, OTHER, 1000);
        check(&[], None);
        check(std::slice::from_ref(&own), Some(1000));
        check(&[line("0100007F:D432", OTHER, 0), own.clone()], Some(1000));
        // The server's end of the connection is not the client's.
        check(&[line(OTHER, OWN, 0), own], Some(1000));
        check(&[line(OWN, "0100007F:1B9F", 0)], None);
    }

    #[test]
    fn addresses_are_formatted_as_in_tables() {
        let check = |address: &str, v4: Option<&str>, v6: &str| {
            let address = address.parse().unwrap();
            assert_eq!(format_table_address_v4(address).as_deref(), v4);
            assert_eq!(format_table_address_v6(address), v6);
        };
        check(
            "127.0.0.1:7070",
            Some("0100007F:1B9E"),
            "0000000000000000FFFF00000100007F:1B9E",
        );
        check("[::1]:80", None, "00000000000000000000000001000000:0050");
    }
}
