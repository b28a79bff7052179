//! DNS messages (RFC 1035), as much as a forwarder of host names needs.
//!
//! Reads are bounded and strict: one question, names of host-name characters, compression pointers that only
//! point back, no record but the kinds below. Writes never compress.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Record kinds that are understood.
pub mod kind {
    pub const A: u16 = 1;
    pub const NS: u16 = 2;
    pub const CNAME: u16 = 5;
    pub const SOA: u16 = 6;
    pub const PTR: u16 = 12;
    pub const MX: u16 = 15;
    pub const TXT: u16 = 16;
    pub const AAAA: u16 = 28;
    pub const SRV: u16 = 33;
    pub const OPT: u16 = 41;
    pub const SVCB: u16 = 64;
    pub const HTTPS: u16 = 65;
}

const CLASS_IN: u16 = 1;
/// More than any answer for a host has; the rest is not looked at.
const MAX_RECORDS: usize = 128;

/// Why bytes are not a message that we take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DnsError {
    #[error("the message ends too early")]
    Short,
    #[error("a name is not well-formed")]
    Name,
    #[error("the message does not hold exactly one question of class IN")]
    Question,
    #[error("the message is of another kind than expected")]
    Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ResponseCode {
    NoError = 0,
    FormatError = 1,
    ServerFailure = 2,
    NameError = 3,
    NotImplemented = 4,
    Refused = 5,
}

impl ResponseCode {
    fn from_bits(bits: u8) -> Self {
        match bits {
            0 => Self::NoError,
            1 => Self::FormatError,
            3 => Self::NameError,
            4 => Self::NotImplemented,
            5 => Self::Refused,
            _ => Self::ServerFailure,
        }
    }
}

/// What is asked. The name is lower case, without the last dot; it need not be a host name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Question {
    pub name: String,
    pub kind: u16,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub name: String,
    pub ttl_seconds: u32,
    pub data: Data,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Data {
    Address(IpAddr),
    /// CNAME.
    Alias(String),
    /// NS and PTR.
    Host {
        kind: u16,
        name: String,
    },
    Mx {
        preference: u16,
        exchange: String,
    },
    Srv {
        numbers: [u16; 3],
        target: String,
    },
    Txt(Vec<u8>),
}

impl Data {
    fn kind(&self) -> u16 {
        match self {
            Self::Address(IpAddr::V4(_)) => kind::A,
            Self::Address(IpAddr::V6(_)) => kind::AAAA,
            Self::Alias(_) => kind::CNAME,
            Self::Host { kind, .. } => *kind,
            Self::Mx { .. } => kind::MX,
            Self::Srv { .. } => kind::SRV,
            Self::Txt(_) => kind::TXT,
        }
    }
}

/// A query or a response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    pub id: u16,
    pub response: bool,
    pub truncated: bool,
    pub code: ResponseCode,
    pub question: Question,
    /// Answers only; the other sections are read past.
    pub answers: Vec<Record>,
    /// What the sender of a query can take, when it says so (EDNS).
    pub udp_size: Option<u16>,
}

impl Message {
    pub fn query(id: u16, question: Question) -> Self {
        Self {
            id,
            response: false,
            truncated: false,
            code: ResponseCode::NoError,
            question,
            answers: Vec::new(),
            udp_size: None,
        }
    }

    pub fn parse(bytes: &[u8]) -> Result<Self, DnsError> {
        let mut reader = Reader { all: bytes, at: 0 };
        let id = reader.u16()?;
        let flags = reader.u16()?;
        let counts = [reader.u16()?, reader.u16()?, reader.u16()?, reader.u16()?];
        let response = flags & 0x8000 != 0;
        // Standard queries only.
        if flags & 0x7800 != 0 {
            return Err(DnsError::Kind);
        }
        if counts[0] != 1 {
            return Err(DnsError::Question);
        }
        let name = reader.name()?;
        let kind = reader.u16()?;
        if reader.u16()? != CLASS_IN {
            return Err(DnsError::Question);
        }
        let mut message = Self {
            id,
            response,
            truncated: flags & 0x0200 != 0,
            code: ResponseCode::from_bits((flags & 0xf) as u8),
            question: Question { name, kind },
            answers: Vec::new(),
            udp_size: None,
        };
        message.read_records(&mut reader, counts)?;
        Ok(message)
    }

    fn read_records(&mut self, reader: &mut Reader<'_>, counts: [u16; 4]) -> Result<(), DnsError> {
        let answers = usize::from(counts[1]);
        let all = answers + usize::from(counts[2]) + usize::from(counts[3]);
        for index in 0..all.min(MAX_RECORDS) {
            // What cannot be read behind the answers does not matter.
            let raw = match reader.record() {
                Ok(raw) => raw,
                Err(_) if self.truncated || index >= answers => return Ok(()),
                Err(error) => return Err(error),
            };
            if raw.kind == kind::OPT {
                self.udp_size = Some(raw.class);
            } else if index < answers
                && raw.class == CLASS_IN
                && let Some(data) = raw.data(reader.all)?
            {
                // Bit 31 is no number of seconds (RFC 2181, 8).
                let ttl_seconds = if raw.ttl > i32::MAX as u32 { 0 } else { raw.ttl };
                self.answers.push(Record { name: raw.name, ttl_seconds, data });
            }
        }
        Ok(())
    }

    /// The message's bytes. Records that do not fit into `limit` are left out.
    pub fn encode(&self, limit: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(128);
        out.extend(self.id.to_be_bytes());
        // Recursion is desired, and in responses available.
        let mut flags = 0x0100 | u16::from(self.code as u8);
        if self.response {
            flags |= 0x8080;
        }
        if self.truncated {
            flags |= 0x0200;
        }
        out.extend(flags.to_be_bytes());
        out.extend([0, 1, 0, 0, 0, 0, 0, 0]);
        write_name(&mut out, &self.question.name);
        out.extend(self.question.kind.to_be_bytes());
        out.extend(CLASS_IN.to_be_bytes());
        let opt = self.udp_size.map(|size| {
            let [high, low] = size.to_be_bytes();
            [0, 0, kind::OPT as u8, high, low, 0, 0, 0, 0, 0, 0]
        });
        let limit = limit.saturating_sub(opt.map_or(0, |opt| opt.len()));
        let mut count = 0_u16;
        for record in &self.answers {
            let start = out.len();
            write_record(&mut out, record);
            if out.len() > limit {
                out.truncate(start);
                break;
            }
            count += 1;
        }
        out[6..8].copy_from_slice(&count.to_be_bytes());
        if let Some(opt) = opt {
            out.extend(opt);
            out[11] = 1;
        }
        out
    }
}

fn write_name(out: &mut Vec<u8>, name: &str) {
    for label in name.split('.').filter(|label| !label.is_empty()) {
        // Names come from `Reader::name` or `HostName`, whose labels are at most 63 long.
        let label = &label.as_bytes()[..label.len().min(63)];
        out.push(label.len() as u8);
        out.extend(label);
    }
    out.push(0);
}

fn write_record(out: &mut Vec<u8>, record: &Record) {
    write_name(out, &record.name);
    out.extend(record.data.kind().to_be_bytes());
    out.extend(CLASS_IN.to_be_bytes());
    out.extend(record.ttl_seconds.to_be_bytes());
    let length_at = out.len();
    out.extend([0, 0]);
    match &record.data {
        Data::Address(IpAddr::V4(v4)) => out.extend(v4.octets()),
        Data::Address(IpAddr::V6(v6)) => out.extend(v6.octets()),
        Data::Alias(name) | Data::Host { name, .. } => write_name(out, name),
        Data::Mx { preference, exchange } => {
            out.extend(preference.to_be_bytes());
            write_name(out, exchange);
        }
        Data::Srv { numbers, target } => {
            out.extend(numbers.iter().flat_map(|number| number.to_be_bytes()));
            write_name(out, target);
        }
        Data::Txt(text) => out.extend(text),
    }
    let length = (out.len() - length_at - 2) as u16;
    out[length_at..length_at + 2].copy_from_slice(&length.to_be_bytes());
}

struct Reader<'a> {
    all: &'a [u8],
    at: usize,
}

struct RawRecord {
    name: String,
    kind: u16,
    class: u16,
    ttl: u32,
    start: usize,
    end: usize,
}

impl Reader<'_> {
    fn u8(&mut self) -> Result<u8, DnsError> {
        let byte = *self.all.get(self.at).ok_or(DnsError::Short)?;
        self.at += 1;
        Ok(byte)
    }

    fn u16(&mut self) -> Result<u16, DnsError> {
        Ok(u16::from(self.u8()?) << 8 | u16::from(self.u8()?))
    }

    fn u32(&mut self) -> Result<u32, DnsError> {
        Ok(u32::from(self.u16()?) << 16 | u32::from(self.u16()?))
    }

    /// A name, lower case, dots between labels; the root is empty.
    fn name(&mut self) -> Result<String, DnsError> {
        let mut name = String::new();
        let mut at = self.at;
        let mut jumped = false;
        // A pointer must point before the place it stands at, so the loop ends.
        let mut before = self.at;
        loop {
            let length = usize::from(*self.all.get(at).ok_or(DnsError::Short)?);
            match length {
                0 => {
                    if !jumped {
                        self.at = at + 1;
                    }
                    return Ok(name);
                }
                1..=63 => {
                    let label = self.all.get(at + 1..at + 1 + length).ok_or(DnsError::Short)?;
                    if !label.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')) {
                        return Err(DnsError::Name);
                    }
                    if !name.is_empty() {
                        name.push('.');
                    }
                    name.extend(label.iter().map(|byte| char::from(byte.to_ascii_lowercase())));
                    if name.len() > 253 {
                        return Err(DnsError::Name);
                    }
                    at += 1 + length;
                }
                0xc0.. => {
                    let low = usize::from(*self.all.get(at + 1).ok_or(DnsError::Short)?);
                    let target = (length & 0x3f) << 8 | low;
                    if target >= before {
                        return Err(DnsError::Name);
                    }
                    if !jumped {
                        self.at = at + 2;
                    }
                    jumped = true;
                    before = target;
                    at = target;
                }
                _ => return Err(DnsError::Name),
            }
        }
    }

    fn record(&mut self) -> Result<RawRecord, DnsError> {
        let name = self.name()?;
        let (kind, class, ttl) = (self.u16()?, self.u16()?, self.u32()?);
        let start = self.at + 2;
        let end = start + usize::from(self.u16()?);
        if end > self.all.len() {
            return Err(DnsError::Short);
        }
        self.at = end;
        Ok(RawRecord { name, kind, class, ttl, start, end })
    }
}

impl RawRecord {
    /// `None` for kinds that are not handed on.
    fn data(&self, all: &[u8]) -> Result<Option<Data>, DnsError> {
        // Names in the data may point anywhere before, but must not be read beyond it.
        let mut reader = Reader { all: &all[..self.end], at: self.start };
        let raw = &all[self.start..self.end];
        let data = match self.kind {
            kind::A => {
                Data::Address(Ipv4Addr::from(<[u8; 4]>::try_from(raw).map_err(|_| DnsError::Short)?).into())
            }
            kind::AAAA => {
                Data::Address(Ipv6Addr::from(<[u8; 16]>::try_from(raw).map_err(|_| DnsError::Short)?).into())
            }
            kind::CNAME => Data::Alias(reader.name()?),
            kind @ (kind::NS | kind::PTR) => Data::Host { kind, name: reader.name()? },
            kind::MX => Data::Mx { preference: reader.u16()?, exchange: reader.name()? },
            kind::SRV => {
                Data::Srv { numbers: [reader.u16()?, reader.u16()?, reader.u16()?], target: reader.name()? }
            }
            kind::TXT => Data::Txt(raw.to_vec()),
            _ => return Ok(None),
        };
        Ok(Some(data))
    }
}

#[cfg(test)]
#[path = "message_tests.rs"]
mod tests;
