//! Bare axum, and the runtime under both of axum's servers: tokio's of one thread where one worker is asked for, which is the
//! faster one on one core.

use super::Options;
use axum::Router;
use axum::body::Bytes;
use axum::http::StatusCode;
use axum::routing::post;
use axum::serve::ListenerExt;
use tokio::net::TcpListener;
use tokio::runtime::Builder;

async fn nothing(body: Bytes) -> StatusCode {
    std::hint::black_box(body.len());
    StatusCode::NO_CONTENT
}

pub fn bare() -> Router {
    Router::new().route("/e", post(nothing))
}

pub fn serve(options: &Options, router: Router) -> anyhow::Result<()> {
    let runtime = if options.workers == 1 && !options.multi_thread {
        Builder::new_current_thread().enable_all().build()?
    } else {
        Builder::new_multi_thread()
            .worker_threads(options.workers)
            .enable_all()
            .build()?
    };
    runtime.block_on(async {
        let listener = TcpListener::bind(options.address).await?.tap_io(|stream| {
            let _ = stream.set_nodelay(true);
        });
        axum::serve(listener, router).await
    })?;
    Ok(())
}
