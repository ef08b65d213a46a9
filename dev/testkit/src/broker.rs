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
    names: "handle__publish",
    forks: None,
    command: |place| {
        let config = format!(
            "listener {} 127.0.0.1\nallow_anonymous true\nlog_dest stderr\n",
            place.port
        );
        let mut command = Command::new("/usr/sbin/mosquitto");
        command
            .arg("-c")
            .arg(place.write("mosquitto.conf", &config)?);
        Ok(command)
    },
    answer: |running| {
        let mut session = hello(running)?;
        session.write_all(&publish("answer", b"hello"))?;
        // SUBSCRIBE, packet 1, quality of service 0.
        session.write_all(&packet(
            0x82,
            &[&[0, 1], &text("answer")[..], &[0]].concat(),
        ))?;
        // What is kept comes behind SUBACK.
        ensure!(read_packet(&mut session, 5)?[0] == 0x90, "no SUBACK");
        let kept = packet(0x31, &[&text("answer")[..], b"hello"].concat());
        Ok(String::from_utf8_lossy(&read_packet(&mut session, kept.len())?).into_owned())
    },
    load: |running| {
        let mut session = hello(running)?;
        for number in 0..2000 {
            session.write_all(&publish(&format!("load/{number}"), &[b'x'; 1000]))?;
        }
        // PINGREQ: answered when all before it is done.
        session.write_all(&[0xc0, 0])?;
        ensure!(read_packet(&mut session, 2)? == [0xd0, 0], "no PINGRESP");
        Ok(())
    },
};

/// A connection on which CONNECT was accepted (MQTT 3.1.1, 3.1).
fn hello(running: &RunningServer) -> Result<TcpStream> {
    let mut session = connect(running.place().port)?;
    // Level 4, clean session, 60 s, no name.
    let body = [&text("MQTT")[..], &[4, 2, 0, 60, 0, 0]].concat();
    session.write_all(&packet(0x10, &body))?;
    ensure!(
        read_packet(&mut session, 4)? == [0x20, 2, 0, 0],
        "no CONNACK"
    );
    Ok(session)
}

/// PUBLISH that is kept, without an acknowledgement.
fn publish(topic: &str, message: &[u8]) -> Vec<u8> {
    packet(0x31, &[&text(topic)[..], message].concat())
}

fn packet(kind: u8, body: &[u8]) -> Vec<u8> {
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

fn text(text: &str) -> Vec<u8> {
    let length = u16::try_from(text.len()).expect("a short text");
    [&length.to_be_bytes(), text.as_bytes()].concat()
}

fn read_packet(session: &mut TcpStream, length: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    session.read_exact(&mut bytes)?;
    Ok(bytes)
}
