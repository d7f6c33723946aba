//! The comparator of the doors: an actix-web server that reads the body of `POST /e` and answers 204. Nothing else.

use actix_web::web::Bytes;
use actix_web::{App, HttpResponse, HttpServer, web};
use std::net::SocketAddr;

async fn nothing(body: Bytes) -> HttpResponse {
    std::hint::black_box(body.len());
    HttpResponse::NoContent().finish()
}

/// Serves until the process is ended.
///
/// # Errors
/// The address cannot be bound.
pub fn serve(address: SocketAddr, workers: usize) -> anyhow::Result<()> {
    actix_web::rt::System::new().block_on(async move {
        HttpServer::new(|| App::new().default_service(web::to(nothing)))
            .workers(workers)
            .bind(address)?
            .run()
            .await
    })?;
    Ok(())
}
