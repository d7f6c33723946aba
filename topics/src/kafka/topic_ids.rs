//! Ids of topics: what tells a topic from another of its name that was there before. rdkafka has no face for librdkafka's
//! DescribeTopics yet, so it is called here, and nowhere else.

use rdkafka::bindings as rd;
use rdkafka::client::Client;
use rdkafka::error::KafkaError;
use rdkafka::types::{RDKafkaErrorCode, RDKafkaRespErr};
use std::ffi::CString;
use std::time::Duration;

/// Lets go of what librdkafka has handed out, however the question ends.
struct Held<T> {
    pointer: *mut T,
    let_go: unsafe extern "C" fn(*mut T),
}

impl<T> Held<T> {
    /// None where librdkafka had nothing to hand out.
    fn new(pointer: *mut T, let_go: unsafe extern "C" fn(*mut T)) -> Option<Held<T>> {
        (!pointer.is_null()).then_some(Held { pointer, let_go })
    }
}

impl<T> Drop for Held<T> {
    #[expect(unsafe_code, reason = "librdkafka's own destructor on what it made")]
    fn drop(&mut self) {
        // SAFETY: the pointer came from librdkafka, is not null, and is given back once.
        unsafe { (self.let_go)(self.pointer) }
    }
}

/// The cluster's ids of some topics, in their order, as 32 hexadecimal digits; `None`: there is no such topic, or the brokers
/// give topics no ids. Blocks.
///
/// # Errors
/// The cluster did not answer in time, or refuses.
pub(super) fn of<C: rdkafka::ClientContext>(
    client: &Client<C>,
    names: &[String],
    timeout: Duration,
) -> Result<Vec<Option<String>>, KafkaError> {
    let names: Vec<CString> = names
        .iter()
        .map(|name| CString::new(name.as_str()))
        .collect::<Result<_, _>>()?;
    let event = ask(client, &names, timeout)?;
    read(&event)
}

fn failed(code: RDKafkaErrorCode) -> KafkaError {
    KafkaError::AdminOp(code)
}

#[expect(unsafe_code, reason = "librdkafka's C interface")]
fn ask<C: rdkafka::ClientContext>(
    client: &Client<C>,
    names: &[CString],
    timeout: Duration,
) -> Result<Held<rd::rd_kafka_event_t>, KafkaError> {
    let nothing = || failed(RDKafkaErrorCode::Fail);
    let millis = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
    let mut pointers: Vec<*const std::ffi::c_char> = names.iter().map(|n| n.as_ptr()).collect();
    let rk = client.native_ptr();
    // SAFETY: `rk` lives as long as `client`, which outlives this call. The collection copies the names, which live until the end
    // of it. Everything that is made is held by a `Held` and given back after the last use; options and collection may be given
    // back once DescribeTopics has returned, since it copies them.
    unsafe {
        let queue = Held::new(rd::rd_kafka_queue_new(rk), rd::rd_kafka_queue_destroy);
        let queue = queue.ok_or_else(nothing)?;
        let topics = Held::new(
            rd::rd_kafka_TopicCollection_of_topic_names(pointers.as_mut_ptr(), pointers.len()),
            rd::rd_kafka_TopicCollection_destroy,
        );
        let topics = topics.ok_or_else(nothing)?;
        let options = Held::new(
            rd::rd_kafka_AdminOptions_new(
                rk,
                rd::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBETOPICS,
            ),
            rd::rd_kafka_AdminOptions_destroy,
        );
        let options = options.ok_or_else(nothing)?;
        rd::rd_kafka_AdminOptions_set_request_timeout(
            options.pointer,
            millis,
            std::ptr::null_mut(),
            0,
        );
        rd::rd_kafka_DescribeTopics(rk, topics.pointer, options.pointer, queue.pointer);
        let event = rd::rd_kafka_queue_poll(queue.pointer, millis);
        Held::new(event, rd::rd_kafka_event_destroy)
            .ok_or_else(|| failed(RDKafkaErrorCode::OperationTimedOut))
    }
}

#[expect(unsafe_code, reason = "librdkafka's C interface")]
fn read(event: &Held<rd::rd_kafka_event_t>) -> Result<Vec<Option<String>>, KafkaError> {
    let mut ids = Vec::new();
    // SAFETY: the event is held by the caller; result, descriptions and ids are parts of it and are not used after it. The array
    // has as many entries as librdkafka says.
    unsafe {
        let error = rd::rd_kafka_event_error(event.pointer);
        if error != RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR {
            return Err(failed(error.into()));
        }
        let result = rd::rd_kafka_event_DescribeTopics_result(event.pointer);
        if result.is_null() {
            return Err(failed(RDKafkaErrorCode::Fail));
        }
        let mut count = 0_usize;
        let topics = rd::rd_kafka_DescribeTopics_result_topics(result, &raw mut count);
        for at in 0..count {
            let topic = *topics.add(at);
            let error = rd::rd_kafka_TopicDescription_error(topic);
            let code = match error.is_null() {
                true => RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR,
                false => rd::rd_kafka_error_code(error),
            };
            match code {
                RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR => {}
                RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART => {
                    ids.push(None);
                    continue;
                }
                other => return Err(failed(other.into())),
            }
            let id = rd::rd_kafka_TopicDescription_topic_id(topic);
            let bits = match id.is_null() {
                true => (0, 0),
                false => (
                    rd::rd_kafka_Uuid_most_significant_bits(id),
                    rd::rd_kafka_Uuid_least_significant_bits(id),
                ),
            };
            ids.push((bits != (0, 0)).then(|| format!("{:016x}{:016x}", bits.0, bits.1)));
        }
    }
    Ok(ids)
}
