//! Bare actix-web: reads the body, answers 204, nothing else.

use super::Options;
use actix_web::web::Bytes;
use actix_web::{App, HttpResponse, HttpServer, web};

async fn nothing(body: Bytes) -> HttpResponse {
    std::hint::black_box(body.len());
    HttpResponse::NoContent().finish()
}

pub fn serve(options: &Options) -> anyhow::Result<()> {
    let (address, workers) = (options.address, options.workers);
    actix_web::rt::System::new().block_on(async move {
        HttpServer::new(|| App::new().default_service(web::to(nothing)))
            .workers(workers)
            .bind(address)?
            .run()
            .await
    })?;
    Ok(())
}
