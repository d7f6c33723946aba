//! `millrace` as the proving ground runs it: the same command line, built with feature `proving` (failpoints, a clock from a
//! file, switched-off safeguards). It never ships.

fn main() -> std::process::ExitCode {
    millrace::cli::main()
}
