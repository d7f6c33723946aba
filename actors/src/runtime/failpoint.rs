//! Named failpoints and switched-off safeguards, for the proving build alone (feature `proving`); in every other build they
//! are nothing.
//!
//! `MILLRACE_FAILPOINTS=name=action[@n];…` with the actions `abort` (SIGKILL to oneself), `exit`, `panic`, `error`, `stop`
//! (SIGSTOP); `@n`: at the n-th passage (default the first), then never again. `MILLRACE_FAILPOINT_LOG` names a file to
//! which each hit is appended. `MILLRACE_SABOTAGE=fence,position,claim` switches safeguards off, so that a run can prove that
//! it would notice.

/// Whether a safeguard is switched off.
#[must_use]
#[inline]
pub fn sabotaged(what: &str) -> bool {
    #[cfg(feature = "proving")]
    {
        static WHAT: std::sync::OnceLock<Vec<String>> = std::sync::OnceLock::new();
        let list = WHAT.get_or_init(|| {
            std::env::var("MILLRACE_SABOTAGE")
                .map(|v| v.split(',').map(|s| s.trim().to_owned()).collect())
                .unwrap_or_default()
        });
        list.iter().any(|s| s == what)
    }
    #[cfg(not(feature = "proving"))]
    {
        let _ = what;
        false
    }
}

/// Passes a failpoint. `true`: its action is `error`, and the caller is to fail in the way that the point stands for.
#[inline]
#[must_use]
pub fn hit(name: &str) -> bool {
    #[cfg(feature = "proving")]
    {
        armed::hit(name)
    }
    #[cfg(not(feature = "proving"))]
    {
        let _ = name;
        false
    }
}

#[cfg(feature = "proving")]
mod armed {
    use std::io::Write;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    struct Point {
        name: String,
        action: String,
        at: u64,
        passed: AtomicU64,
    }

    static POINTS: OnceLock<Vec<Point>> = OnceLock::new();

    fn points() -> &'static [Point] {
        POINTS.get_or_init(|| {
            let text = std::env::var("MILLRACE_FAILPOINTS").unwrap_or_default();
            text.split(';')
                .filter_map(|part| {
                    let (name, action) = part.trim().split_once('=')?;
                    let (action, at) = action.split_once('@').unwrap_or((action, "1"));
                    Some(Point {
                        name: name.to_owned(),
                        action: action.to_owned(),
                        at: at.parse().ok()?,
                        passed: AtomicU64::new(0),
                    })
                })
                .collect()
        })
    }

    pub fn hit(name: &str) -> bool {
        for point in points().iter().filter(|p| p.name == name) {
            if point.passed.fetch_add(1, Ordering::SeqCst) + 1 != point.at {
                continue;
            }
            if let Ok(path) = std::env::var("MILLRACE_FAILPOINT_LOG")
                && let Ok(mut file) = std::fs::OpenOptions::new()
                    .create(true)
                    .append(true)
                    .open(path)
            {
                let _ = writeln!(file, "{name}");
            }
            match point.action.as_str() {
                "abort" => signal(libc::SIGKILL),
                "stop" => signal(libc::SIGSTOP),
                "exit" => std::process::exit(70),
                #[expect(clippy::panic, reason = "the point of the failpoint")]
                "panic" => panic!("failpoint {name}"),
                _ => return true,
            }
        }
        false
    }

    #[expect(
        unsafe_code,
        reason = "raise(3) on our own thread reads no memory of ours"
    )]
    fn signal(signal: i32) {
        // To this very thread, which so stands still here and not a few statements further on.
        // SAFETY: raise has no memory effects.
        unsafe {
            libc::raise(signal);
        }
    }
}
