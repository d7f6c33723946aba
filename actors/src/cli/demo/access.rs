//! The access log that the demo replays: unpacked, read, and each line given its part.
//!
//! The log is Elastic's public example (Apache-2.0; see config/demo/README.md), carried inside the program.

use millrace_schemas::time::Micros;
use std::io::Read;

/// The log, compressed.
const PACKED: &[u8] = include_bytes!("../../../../config/demo/access_2015.log.gz");

/// The site whose log it is: a referrer of its own is no entrance.
const SITE: &str = "semicomplete.com";

/// Endings of what is no page.
const ASSETS: &[&str] = &[
    "png", "jpg", "jpeg", "gif", "css", "js", "ico", "svg", "ttf", "woff", "eot",
];

/// Marks in the user agents of programs that follow links for nobody.
const PROGRAMS: &[&str] = &[
    "bot", "spider", "crawl", "slurp", "feed", "rss", "curl", "wget", "python", "java/", "monitor",
];

/// What a line of the log is to the demo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// A page served to somebody who came from another site, or from nowhere.
    Entrance,
    /// A page served to somebody who was on the site already.
    Onward,
    /// A page served to a program (a crawler, a feed reader): a visit, but it never clicks.
    Program,
    /// An image, font, script or style, robots.txt, or a request that served no page: left out.
    Other,
}

/// One line of the log.
#[derive(Clone, Debug)]
pub struct Line<'a> {
    /// Its number, from 1.
    pub number: usize,
    /// Its text.
    pub text: &'a str,
    /// The client's address.
    pub address: &'a str,
    /// When.
    pub at: Micros,
    /// The path without its query.
    pub path: &'a str,
    /// The host of the referrer, without `www.`.
    pub referrer: Option<&'a str>,
    /// The user agent.
    pub agent: &'a str,
    /// What it is.
    pub part: Part,
}

/// The whole log as text.
///
/// # Errors
/// The program was built around a broken file.
pub fn unpack() -> std::io::Result<String> {
    let mut text = String::new();
    flate2::read::GzDecoder::new(PACKED).read_to_string(&mut text)?;
    Ok(text)
}

/// The first `limit` lines. A line that is none of the combined format is [`Part::Other`] and has the time of the one before.
pub fn read(text: &str, limit: usize) -> Vec<Line<'_>> {
    let mut last = Micros(0);
    text.lines()
        .take(limit)
        .enumerate()
        .map(|(i, text)| {
            let line = parse(i + 1, text).unwrap_or(Line {
                number: i + 1,
                text,
                address: "",
                at: last,
                path: "",
                referrer: None,
                agent: "",
                part: Part::Other,
            });
            last = line.at;
            line
        })
        .collect()
}

/// `address - - [17/May/2015:10:05:03 +0000] "GET /path HTTP/1.1" 200 203023 "referrer" "agent"`.
fn parse(number: usize, text: &str) -> Option<Line<'_>> {
    let (address, rest) = text.split_once(' ')?;
    let (_, rest) = rest.split_once('[')?;
    let (time, rest) = rest.split_once("] \"")?;
    let (request, rest) = rest.split_once("\" ")?;
    let (status, rest) = rest.split_once(' ')?;
    let mut quoted = rest.split('"').skip(1);
    let referrer = quoted.next()?;
    let agent = quoted.nth(1)?;
    let mut request = request.split(' ');
    let (method, target) = (request.next()?, request.next()?);
    let path = target.split('?').next()?;
    let referrer = host_of(referrer);
    let served = method == "GET" && (status == "200" || status == "304");
    let part = if !served || is_asset(path) {
        Part::Other
    } else if is_program(agent) {
        Part::Program
    } else if referrer.is_some_and(|host| host == SITE || host.ends_with(".semicomplete.com")) {
        Part::Onward
    } else {
        Part::Entrance
    };
    Some(Line {
        number,
        text,
        address,
        at: parse_time(time)?,
        path,
        referrer,
        agent,
        part,
    })
}

fn host_of(referrer: &str) -> Option<&str> {
    let (_, rest) = referrer.split_once("://")?;
    let host = rest.split(['/', '?', ':']).next()?;
    Some(host.strip_prefix("www.").unwrap_or(host)).filter(|h| !h.is_empty())
}

fn is_asset(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    path == "/robots.txt"
        || name
            .rsplit_once('.')
            .is_some_and(|(_, ending)| ASSETS.iter().any(|a| ending.eq_ignore_ascii_case(a)))
}

fn is_program(agent: &str) -> bool {
    let agent = agent.to_ascii_lowercase();
    agent.len() < 8 || PROGRAMS.iter().any(|mark| agent.contains(mark))
}

/// `17/May/2015:10:05:03 +0000`.
fn parse_time(text: &str) -> Option<Micros> {
    jiff::fmt::strtime::parse("%d/%b/%Y:%H:%M:%S %z", text)
        .and_then(|parsed| parsed.to_timestamp())
        .ok()
        .map(|at| Micros(at.as_microsecond()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_log_reads() {
        let text = unpack().expect("the log unpacks");
        let lines = read(&text, usize::MAX);
        assert_eq!(lines.len(), 10_000);
        let count = |part| lines.iter().filter(|l| l.part == part).count();
        assert_eq!(
            (
                count(Part::Entrance),
                count(Part::Onward),
                count(Part::Program)
            ),
            (1_375, 542, 2_102)
        );
        let first = &lines[0];
        assert_eq!(first.at.rfc3339(), "2015-05-17T10:05:03Z");
        assert_eq!(first.referrer, Some(SITE));
        assert_eq!(first.part, Part::Other);
        // One line of the log lacks its last quote; it is a page all the same.
        assert!(lines.iter().all(|l| !l.agent.is_empty()));
    }

    #[test]
    fn what_is_no_line_is_left_out() {
        let lines = read("nonsense\n\n1.2.3.4 - - [", 10);
        assert!(lines.iter().all(|l| l.part == Part::Other));
    }
}
