//! Message brokers.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

use anyhow::{Result, ensure};

use crate::net_client::connect;
use crate::server::RunningServer;
use crate::server::{ProfiledProcess, Server};
use crate::server_dir::User;

pub(crate) const MOSQUITTO: Server = Server {
    name: "mosquitto",
    packages: &["mosquitto"],
    user: User::Starter,
    profiled: ProfiledProcess::Main,
    load_symbol: "handle__publish",
    fork: None,
    command: |dir| {
        let config = format!(
            "listener {} 127.0.0.1\nallow_anonymous true\nlog_dest stderr\n",
            dir.port
        );
        let mut command = Command::new("/usr/sbin/mosquitto");
        command
            .arg("-c")
            .arg(dir.write_file("mosquitto.conf", &config)?);
        Ok(command)
    },
    query: |running| {
        let mut session = connect_client(running)?;
        session.write_all(&publish_packet("answer", b"hello"))?;
        // SUBSCRIBE, packet 1, quality of service 0.
        session.write_all(&encode_packet(
            0x82,
            &[&[0, 1], &mqtt_string("answer")[..], &[0]].concat(),
        ))?;
        // The retained message follows SUBACK.
        ensure!(read_bytes(&mut session, 5)?[0] == 0x90, "no SUBACK");
        let retained = encode_packet(0x31, &[&mqtt_string("answer")[..], b"hello"].concat());
        Ok(String::from_utf8_lossy(&read_bytes(&mut session, retained.len())?).into_owned())
    },
    load: |running| {
        let mut session = connect_client(running)?;
        for number in 0..2000 {
            session.write_all(&publish_packet(&format!("load/{number}"), &[b'x'; 1000]))?;
        }
        // PINGREQ: the broker replies after it has processed every packet before it.
        session.write_all(&[0xc0, 0])?;
        ensure!(read_bytes(&mut session, 2)? == [0xd0, 0], "no PINGRESP");
        Ok(())
    },
};

/// Opens a connection to the broker and sends CONNECT (MQTT 3.1.1, section 3.1). Fails unless the broker accepts it.
fn connect_client(running: &RunningServer) -> Result<TcpStream> {
    let mut session = connect(running.dir().port)?;
    // Protocol level 4, clean session, keep-alive of 60 s, empty client identifier.
    let body = [&mqtt_string("MQTT")[..], &[4, 2, 0, 60, 0, 0]].concat();
    session.write_all(&encode_packet(0x10, &body))?;
    ensure!(
        read_bytes(&mut session, 4)? == [0x20, 2, 0, 0],
        "no CONNACK"
    );
    Ok(session)
}

/// Builds a PUBLISH packet with the RETAIN flag and quality of service 0, which gets no acknowledgement.
fn publish_packet(topic: &str, message: &[u8]) -> Vec<u8> {
    encode_packet(0x31, &[&mqtt_string(topic)[..], message].concat())
}

/// Encodes an MQTT packet: `kind`, the first byte of its header; the length of the body, as a variable byte integer
/// (MQTT 3.1.1, section 2.2.3); and the body.
fn encode_packet(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut packet = vec![kind];
    let mut length = body.len();
    while length > 127 {
        packet.push(0x80 | (length % 128) as u8);
        length /= 128;
    }
    packet.push(length as u8);
    packet.extend_from_slice(body);
    packet
}

/// Encodes a text of MQTT: its length in two bytes, and the text (MQTT 3.1.1, section 1.5.3).
fn mqtt_string(text: &str) -> Vec<u8> {
    let length = u16::try_from(text.len()).expect("a short text");
    [&length.to_be_bytes(), text.as_bytes()].concat()
}

/// Reads exactly `length` bytes; fails if the connection ends before.
fn read_bytes(session: &mut TcpStream, length: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    session.read_exact(&mut bytes)?;
    Ok(bytes)
}
