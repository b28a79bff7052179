//! The program at both ends of a measured network: a server of three ports, and a client that times itself.
//!
//! It is this very program in another role, so that every network, a box's too, is measured by the same code.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::net::sockopt::set_tcp_congestion;
use serde::{Deserialize, Serialize};

/// Where the server stands: an address for documentation, which nothing else can have.
pub(super) const SERVER: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
const SINK: u16 = 7001;
const SOURCE: u16 = 7002;
const ECHO: u16 = 7003;

pub(super) const SERVE: &str = "sandcrate-bench-traffic-server";
pub(super) const CLIENT: &str = "sandcrate-bench-traffic-client";
/// Does nothing: whoever needs a namespace needs a process that has it.
pub(super) const HOLD: &str = "sandcrate-bench-hold";
const PATIENCE: Duration = Duration::from_secs(10);
/// Every socket's congestion control, whatever the machine's default: a pasta of 2023 stalls under `bbr` (it drops what
/// it has no room for), and a peer that stalls is no measure. Any kernel has this one, for anybody.
pub(super) const CONGESTION: &str = "reno";
const CHUNK: usize = 256 << 10;
/// More than there are callers.
const ECHO_THREADS: u32 = 16;

/// What a client does; its one argument, as JSON.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) enum Work {
    /// Sends for so many milliseconds, and waits until all has come: MB/s.
    Out(u64),
    /// Receives for so many milliseconds: MB/s.
    In(u64),
    /// So many requests one after another: milliseconds until connected, and of the whole.
    Requests(u32),
    /// Requests by several callers for so many milliseconds: requests per second.
    Rate { callers: u32, millis: u64 },
}

/// What came of it.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Outcome {
    pub(super) values: Vec<f64>,
    pub(super) connects: Vec<f64>,
    /// Bytes that the network took and never delivered.
    pub(super) lost: u64,
}

/// The exit code, in a process that was started for one of these roles.
pub(crate) fn dispatch_role() -> Option<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [SERVE] => serve(),
        [HOLD] => wait_for_the_end(),
        [CLIENT, work] => client(work),
        _ => return None,
    };
    Some(match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "{error:#}");
            ExitCode::FAILURE
        }
    })
}

/// Says that it is there, and ends with its standard input.
fn wait_for_the_end() -> anyhow::Result<()> {
    writeln!(io::stdout(), "ready")?;
    io::copy(&mut io::stdin(), &mut io::sink())?;
    Ok(())
}

fn serve() -> anyhow::Result<()> {
    let listen = |port| -> io::Result<TcpListener> {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))?;
        set_tcp_congestion(&listener, CONGESTION)?;
        Ok(listener)
    };
    let (sink, source, echo) = (listen(SINK)?, listen(SOURCE)?, listen(ECHO)?);
    std::thread::spawn(move || each_apart(&sink, swallow));
    std::thread::spawn(move || each_apart(&source, pour));
    for _ in 0..ECHO_THREADS {
        let echo = echo.try_clone()?;
        std::thread::spawn(move || each(&echo, answer));
    }
    wait_for_the_end()
}

/// A client that goes away is no error of the server's.
fn each(listener: &TcpListener, serve: fn(TcpStream) -> io::Result<()>) {
    while let Ok((stream, _)) = listener.accept() {
        let _ = serve(stream);
    }
}

/// The same, each in a thread: a connection that its network has forgotten must not hold up the next.
fn each_apart(listener: &TcpListener, serve: fn(TcpStream) -> io::Result<()>) {
    while let Ok((stream, _)) = listener.accept() {
        std::thread::spawn(move || serve(stream));
    }
}

/// Says how much has come: what a network swallows is no throughput.
fn swallow(mut stream: TcpStream) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let (mut buffer, mut bytes) = (vec![0; CHUNK], 0_u64);
    loop {
        match stream.read(&mut buffer)? {
            0 => return stream.write_all(&bytes.to_be_bytes()),
            count => bytes += count as u64,
        }
    }
}

fn pour(mut stream: TcpStream) -> io::Result<()> {
    let chunk = vec![0; CHUNK];
    loop {
        stream.write_all(&chunk)?;
    }
}

/// One byte, and the end: the ports of the client are free again at once.
fn answer(mut stream: TcpStream) -> io::Result<()> {
    let mut byte = [0];
    stream.read_exact(&mut byte)?;
    stream.write_all(&byte)
}

fn client(work: &str) -> anyhow::Result<()> {
    let outcome = match serde_json::from_str(work).context("the work of a client")? {
        Work::Out(millis) => send(Duration::from_millis(millis))?,
        Work::In(millis) => single(receive(Duration::from_millis(millis))?),
        Work::Requests(count) => requests(count)?,
        Work::Rate { callers, millis } => single(rate(callers, Duration::from_millis(millis))?),
    };
    writeln!(io::stdout(), "{}", serde_json::to_string(&outcome)?)?;
    Ok(())
}

fn single(value: f64) -> Outcome {
    Outcome { values: vec![value], ..Outcome::default() }
}

fn connect(port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&SocketAddr::from((SERVER, port)), PATIENCE)?;
    set_tcp_congestion(&stream, CONGESTION)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

fn megabytes(bytes: u64, since: Instant) -> f64 {
    bytes as f64 / 1e6 / since.elapsed().as_secs_f64()
}

fn send(window: Duration) -> io::Result<Outcome> {
    let mut stream = connect(SINK)?;
    let (chunk, mut bytes, started) = (vec![0; CHUNK], 0, Instant::now());
    while started.elapsed() < window {
        bytes += stream.write(&chunk)? as u64;
    }
    stream.shutdown(Shutdown::Write)?;
    let mut came = [0; 8];
    stream.read_exact(&mut came)?;
    let came = u64::from_be_bytes(came);
    Ok(Outcome { lost: bytes - came, ..single(megabytes(came, started)) })
}

fn receive(window: Duration) -> io::Result<f64> {
    let mut stream = connect(SOURCE)?;
    let (mut buffer, mut bytes, started) = (vec![0; CHUNK], 0, Instant::now());
    while started.elapsed() < window {
        match stream.read(&mut buffer)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            count => bytes += count as u64,
        }
    }
    Ok(megabytes(bytes, started))
}

/// A connection, a byte there and one back, its end: how long the first took, and all.
fn request() -> io::Result<(Duration, Duration)> {
    let started = Instant::now();
    let mut stream = connect(ECHO)?;
    let connected = started.elapsed();
    stream.write_all(&[7])?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    if answer != [7] {
        return Err(io::Error::new(ErrorKind::InvalidData, "not what was sent"));
    }
    drop(stream);
    Ok((connected, started.elapsed()))
}

fn requests(count: u32) -> io::Result<Outcome> {
    let mut outcome = Outcome::default();
    for _ in 0..count {
        let (connected, whole) = request()?;
        outcome.connects.push(connected.as_secs_f64() * 1000.0);
        outcome.values.push(whole.as_secs_f64() * 1000.0);
    }
    Ok(outcome)
}

fn rate(callers: u32, window: Duration) -> anyhow::Result<f64> {
    let started = Instant::now();
    let call = move || -> io::Result<u32> {
        let mut count = 0;
        while started.elapsed() < window {
            request()?;
            count += 1;
        }
        Ok(count)
    };
    let threads: Vec<_> = (0..callers).map(|_| std::thread::spawn(call)).collect();
    let mut total = 0;
    for thread in threads {
        total += thread.join().map_err(|_| anyhow::anyhow!("a caller panicked"))??;
    }
    Ok(f64::from(total) / started.elapsed().as_secs_f64())
}
