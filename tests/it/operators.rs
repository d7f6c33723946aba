//! What operators do, where no other module proves it: a contact erased, secrets sealed anew, alert rules over what is exported,
//! a newer build's records under a running process, topics that were made anew.

mod alerts;
mod erase;
mod erase_user;
mod newer;
mod remade;
mod reseal;
