//! Asks the kernel for the socket with a pair of addresses (`sock_diag(7)`).

use std::io;
use std::net::{IpAddr, SocketAddr};

use rustix::io::Errno;
use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use super::Socket;

/// Constants of `linux/netlink.h`: a header is length, type, flags, sequence number and port.
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const HEADER_BYTES: usize = 16;
/// `linux/sock_diag.h`
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// `linux/in.h`
const IPPROTO_TCP: u8 = 6;

/// Queries the kernel for the TCP socket that is bound to `own` and connected to `other`. `None` if there is no such
/// socket. Finds a connection over IPv4 even if the program uses an IPv6 socket. Fails in sandboxes and on kernels
/// without `sock_diag(7)`.
pub(super) fn find_socket(own: SocketAddr, other: SocketAddr) -> io::Result<Option<Socket>> {
    let flags = SocketFlags::CLOEXEC;
    let kernel = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::DGRAM,
        flags,
        Some(SOCK_DIAG),
    )?;
    let request = build_request(own, other);
    let address = SocketAddrNetlink::new(0, 0);
    rustix::net::sendto(&kernel, &request, SendFlags::empty(), &address)?;
    // 88 bytes for the header and `struct inet_diag_msg`, and room for attributes.
    let mut reply = [0; 512];
    // The kernel replies before sendto(2) returns.
    let (length, _) = rustix::net::recv(&kernel, &mut reply, RecvFlags::DONTWAIT)?;
    parse_reply(&reply[..length], &request)
}

/// Builds the query for one TCP socket, by its addresses: a `struct nlmsghdr` with a `struct inet_diag_req_v2`.
fn build_request(own: SocketAddr, other: SocketAddr) -> Vec<u8> {
    // 16 bytes of the header, 56 of the request.
    let mut bytes = Vec::with_capacity(72);
    bytes.extend(72u32.to_ne_bytes());
    bytes.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes.extend(NLM_F_REQUEST.to_ne_bytes());
    // Sequence number and port of the sender, which the kernel only copies to its reply.
    bytes.extend([0; 8]);
    let family = match own.ip() {
        IpAddr::V4(_) => AddressFamily::INET,
        IpAddr::V6(_) => AddressFamily::INET6,
    };
    // Family, protocol, no extensions, padding.
    bytes.extend([family.as_raw().to_ne_bytes()[0], IPPROTO_TCP, 0, 0]);
    // All states.
    bytes.extend(u32::MAX.to_ne_bytes());
    bytes.extend(own.port().to_be_bytes());
    bytes.extend(other.port().to_be_bytes());
    bytes.extend(padded_octets(own));
    bytes.extend(padded_octets(other));
    // Any interface.
    bytes.extend([0; 4]);
    // INET_DIAG_NOCOOKIE.
    bytes.extend([0xff; 8]);
    bytes
}

/// Returns an address in network byte order, padded to 16 bytes.
fn padded_octets(address: SocketAddr) -> [u8; 16] {
    let mut octets = [0; 16];
    match address.ip() {
        IpAddr::V4(ip) => octets[..4].copy_from_slice(&ip.octets()),
        IpAddr::V6(ip) => octets = ip.octets(),
    }
    octets
}

/// Parses the kernel's reply, a `struct inet_diag_msg`. `None` if the kernel found no socket, or a socket with other
/// ports or addresses than the request: the kernel may reply with the listening socket that would accept such a
/// connection. Fails with the kernel's error, or if the reply is truncated.
fn parse_reply(reply: &[u8], request: &[u8]) -> io::Result<Option<Socket>> {
    const ADDRESSES: std::ops::Range<usize> = 4..40;
    let truncated = || io::Error::from(io::ErrorKind::UnexpectedEof);
    let u32_at = |offset: usize| {
        reply
            .get(offset..offset + 4)?
            .try_into()
            .ok()
            .map(u32::from_ne_bytes)
    };
    let kind = reply.get(4..6).ok_or_else(truncated)?;
    let kind = u16::from_ne_bytes([kind[0], kind[1]]);
    if kind == NLMSG_ERROR {
        let errno = u32_at(HEADER_BYTES).ok_or_else(truncated)?.cast_signed();
        let errno = Errno::from_raw_os_error(-errno);
        return if errno == Errno::NOENT {
            Ok(None)
        } else {
            Err(errno.into())
        };
    }
    let message = reply.get(HEADER_BYTES..).unwrap_or_default();
    let addresses = message.get(ADDRESSES).ok_or_else(truncated)?;
    // Ports and addresses begin at offset 4 of the reply's message, and at 8 of the request's.
    if kind != SOCK_DIAG_BY_FAMILY
        || Some(addresses) != request.get(HEADER_BYTES + 8..HEADER_BYTES + 44)
    {
        return Ok(None);
    }
    // Fields of `struct inet_diag_msg` (linux/inet_diag.h): `idiag_state` at 1, `idiag_uid` at 64, `idiag_inode` at 68.
    Ok(Some(Socket {
        state: message[1],
        uid: u32_at(HEADER_BYTES + 64).ok_or_else(truncated)?,
        inode: u32_at(HEADER_BYTES + 68).ok_or_else(truncated)?.into(),
    }))
}
