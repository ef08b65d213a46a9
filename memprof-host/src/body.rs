//! The body of a reply, in memory while it is small.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};

use rustix::fs::{MemfdFlags, SealFlags};

/// A larger body does not fit a line of the control protocol: it is passed as a file.
pub(crate) const INLINE_LIMIT: usize = 64 * 1024;

/// What a plugin replied.
#[derive(Debug)]
pub enum Body {
    /// What fits a line of the control protocol: 64 KiB.
    Inline(Vec<u8>),
    /// More: a file in memory, outside of the host's heap, and its length.
    Large(File, u64),
}

impl Default for Body {
    fn default() -> Self {
        Self::Inline(Vec::new())
    }
}

impl Body {
    /// Appends bytes.
    ///
    /// # Errors
    /// The kernel has no memory or no descriptor left.
    pub fn write(&mut self, chunk: &[u8]) -> io::Result<()> {
        if let Self::Inline(bytes) = self {
            if bytes.len() + chunk.len() <= INLINE_LIMIT {
                bytes.extend_from_slice(chunk);
                return Ok(());
            }
            *self = Self::Large(memory_file(bytes)?, bytes.len() as u64);
        }
        if let Self::Large(file, length) = self {
            file.write_all(chunk)?;
            *length += chunk.len() as u64;
        }
        Ok(())
    }

    /// The number of bytes.
    pub fn len(&self) -> u64 {
        match self {
            Self::Inline(bytes) => bytes.len() as u64,
            Self::Large(_, length) => *length,
        }
    }

    /// True when nothing was written.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A sealed file with the bytes, positioned at its start: nobody can change it any more.
    ///
    /// # Errors
    /// The kernel has no memory or no descriptor left.
    pub fn into_file(self) -> io::Result<File> {
        let mut file = match self {
            Self::Inline(bytes) => memory_file(&bytes)?,
            Self::Large(file, _) => file,
        };
        file.seek(SeekFrom::Start(0))?;
        let seals = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
        rustix::fs::fcntl_add_seals(&file, seals)?;
        Ok(file)
    }

    /// The bytes as text; what is not UTF-8 is replaced. Says so where they cannot be read back.
    pub fn into_text(self) -> String {
        match self.into_bytes() {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) => format!("the reply cannot be read back: {error}"),
        }
    }

    /// The bytes.
    ///
    /// # Errors
    /// A large body cannot be read back.
    pub fn into_bytes(self) -> io::Result<Vec<u8>> {
        match self {
            Self::Inline(bytes) => Ok(bytes),
            Self::Large(mut file, length) => {
                let mut bytes = Vec::with_capacity(length as usize);
                file.seek(SeekFrom::Start(0))?;
                file.read_to_end(&mut bytes)?;
                Ok(bytes)
            }
        }
    }
}

fn memory_file(bytes: &[u8]) -> io::Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut file = File::from(rustix::fs::memfd_create("memprof-reply", flags)?);
    file.write_all(bytes)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_to_a_file_when_large() {
        let mut body = Body::default();
        body.write(&[7; INLINE_LIMIT]).unwrap();
        assert!(matches!(body, Body::Inline(_)));
        body.write(&[8]).unwrap();
        assert!(matches!(body, Body::Large(..)));
        assert_eq!(body.len(), INLINE_LIMIT as u64 + 1);
        assert_eq!(body.into_bytes().unwrap()[INLINE_LIMIT - 1..], [7, 8]);
    }

    #[test]
    fn a_passed_file_is_sealed() {
        let mut body = Body::default();
        body.write(b"dump").unwrap();
        let mut file = body.into_file().unwrap();
        let refused = file.write_all(b"x").unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "dump");
    }
}
