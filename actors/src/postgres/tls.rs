//! TLS to PostgreSQL by `sslmode`, as libpq means it: `disable`, `allow` and `prefer` (encrypt if the server can), `require`
//! (encrypt, verify nobody, unless a file of authorities is named), `verify-ca`, `verify-full`.
//!
//! tokio-postgres knows modes up to `require` alone, so the mode is taken out of the connection string before it is parsed.

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio_postgres::config::SslMode;
use tokio_postgres_rustls::MakeRustlsConnect;

/// How far the connection is protected (libpq's `sslmode`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Never TLS.
    Disable,
    /// TLS if the server offers it, nobody verified. libpq's `allow` is taken for it: no weaker.
    #[default]
    Prefer,
    /// TLS or nothing; nobody verified unless a file of authorities is given (then as [`Mode::VerifyCa`]).
    Require,
    /// TLS; the certificate must lead to a known authority.
    VerifyCa,
    /// TLS; the certificate must lead to a known authority and name the host.
    VerifyFull,
}

impl Mode {
    /// Reads libpq's word.
    ///
    /// # Errors
    /// [`TlsError::UnknownMode`].
    pub fn parse(word: &str) -> Result<Mode, TlsError> {
        match word {
            "disable" => Ok(Mode::Disable),
            "allow" | "prefer" => Ok(Mode::Prefer),
            "require" => Ok(Mode::Require),
            "verify-ca" => Ok(Mode::VerifyCa),
            "verify-full" => Ok(Mode::VerifyFull),
            _ => Err(TlsError::UnknownMode(word.to_owned())),
        }
    }

    /// libpq's word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Mode::Disable => "disable",
            Mode::Prefer => "prefer",
            Mode::Require => "require",
            Mode::VerifyCa => "verify-ca",
            Mode::VerifyFull => "verify-full",
        }
    }

    pub(super) fn wire(self) -> SslMode {
        match self {
            Mode::Disable => SslMode::Disable,
            Mode::Prefer => SslMode::Prefer,
            Mode::Require | Mode::VerifyCa | Mode::VerifyFull => SslMode::Require,
        }
    }
}

/// Why no TLS can be had.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// Not a mode.
    #[error(
        "sslmode `{0}` is unknown; it is one of disable, allow, prefer, require, verify-ca, verify-full"
    )]
    UnknownMode(String),
    /// The file of authorities cannot be read or holds none.
    #[error("the certificate authorities in {path}: {reason}")]
    Authorities {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The system has no certificate authorities.
    #[error(
        "no certificate authorities found on this system; name a PEM file in `database.ca_file`"
    )]
    NoSystemRoots,
    /// rustls refused.
    #[error("TLS: {0}")]
    Rustls(#[from] rustls::Error),
    /// The verifier could not be built.
    #[error("TLS: {0}")]
    Verifier(#[from] rustls::client::VerifierBuilderError),
}

/// The connector of a mode.
///
/// # Errors
/// The authorities cannot be read.
pub fn connector(mode: Mode, ca_file: Option<&Path>) -> Result<MakeRustlsConnect, TlsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()?;
    let config = match (mode, ca_file) {
        (Mode::VerifyFull, _) => builder
            .with_root_certificates(roots(ca_file)?)
            .with_no_client_auth(),
        (Mode::VerifyCa, _) | (Mode::Require, Some(_)) => {
            let inner = WebPkiServerVerifier::builder_with_provider(
                Arc::new(roots(ca_file)?),
                provider.clone(),
            )
            .build()?;
            builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(AnyName(inner)))
                .with_no_client_auth()
        }
        (Mode::Disable | Mode::Prefer | Mode::Require, _) => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Anybody(provider)))
            .with_no_client_auth(),
    };
    Ok(MakeRustlsConnect::new(config))
}

fn roots(ca_file: Option<&Path>) -> Result<RootCertStore, TlsError> {
    let mut store = RootCertStore::empty();
    let Some(path) = ca_file else {
        let native = rustls_native_certs::load_native_certs();
        let (added, _) = store.add_parsable_certificates(native.certs);
        return if added == 0 {
            Err(TlsError::NoSystemRoots)
        } else {
            Ok(store)
        };
    };
    for certificate in authorities(path)? {
        store.add(certificate)?;
    }
    Ok(store)
}

/// The certificates of a PEM file.
///
/// # Errors
/// [`TlsError::Authorities`]: it cannot be read, or holds none.
pub fn authorities(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let wrong = |reason: String| TlsError::Authorities {
        path: path.to_owned(),
        reason,
    };
    let read = CertificateDer::pem_file_iter(path).map_err(|e| wrong(e.to_string()))?;
    let all = read
        .collect::<Result<Vec<_>, _>>()
        .map_err(|e| wrong(e.to_string()))?;
    if all.is_empty() {
        return Err(wrong("there is no certificate in it".to_owned()));
    }
    Ok(all)
}

/// `verify-ca`: the chain counts, the name does not.
#[derive(Debug)]
struct AnyName(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        match self
            .0
            .verify_server_cert(end_entity, intermediates, server_name, ocsp, now)
        {
            // The name is looked at last: whoever fails by it has passed all else.
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

/// `prefer` and `require`: against listeners alone, as libpq has it.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, cert, dss, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
