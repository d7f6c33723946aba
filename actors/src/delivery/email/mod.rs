//! Email over SMTP. What lives here today: [`bounce`], which judges a server's refusal. The channel itself (transport,
//! rendering, suppression) takes its place beside it, in the shape of every other.

pub mod bounce;
