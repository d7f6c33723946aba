//! Certificates of a private authority, made by openssl for one test.

use std::path::{Path, PathBuf};
use std::process::Command;

/// An authority that nobody knows. Its files, and those that it signs, lie in one folder.
#[derive(Debug)]
pub struct Authority {
    folder: PathBuf,
    name: String,
}

impl Authority {
    /// Makes `<name>.pem` and `<name>.key`.
    ///
    /// # Panics
    /// There is no openssl, or it refuses.
    #[must_use]
    pub fn new(folder: &Path, name: &str) -> Authority {
        run(
            folder,
            &format!(
                "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -keyout {name}.key \
                     -out {name}.pem -subj /CN={name} -addext basicConstraints=critical,CA:TRUE"
            ),
        );
        Authority {
            folder: folder.to_owned(),
            name: name.to_owned(),
        }
    }

    /// Its own certificate.
    #[must_use]
    pub fn file(&self) -> PathBuf {
        self.folder.join(format!("{}.pem", self.name))
    }

    /// Signs a certificate for these names (`DNS:localhost`, `IP:127.0.0.1`): `<server>.crt` and `<server>.key`.
    ///
    /// # Panics
    /// openssl refuses.
    pub fn sign(&self, server: &str, names: &str) {
        let authority = &self.name;
        run(
            &self.folder,
            &format!(
                "openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout {server}.key -out {server}.csr -subj /CN={server}
                 printf 'subjectAltName={names}\nbasicConstraints=CA:FALSE\n' > {server}.ext
                 openssl x509 -req -in {server}.csr -CA {authority}.pem -CAkey {authority}.key -CAcreateserial -days 2 \
                     -extfile {server}.ext -out {server}.crt"
            ),
        );
    }
}

fn run(folder: &Path, script: &str) {
    let out = Command::new("bash")
        .args(["-ec", script])
        .current_dir(folder)
        .output()
        .expect("bash and openssl");
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
}
