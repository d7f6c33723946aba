//! The command line, wiring only.

fn main() -> std::process::ExitCode {
    millrace::cli::main()
}
