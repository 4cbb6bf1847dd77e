//! stub
use crate::*;
/// One broken rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {place}: {message}")]
pub struct VerifyError {
    /// code
    pub code: &'static str,
    /// place
    pub place: String,
    /// message
    pub message: String,
}
/// model
pub fn verify_model(_m: &Model) -> Result<(), Vec<VerifyError>> {
    Ok(())
}
/// module
pub fn verify_module(_m: &Module) -> Result<(), Vec<VerifyError>> {
    Ok(())
}
/// kernels
pub fn verify_kernels(_m: &KernelModule) -> Result<(), Vec<VerifyError>> {
    Ok(())
}
/// plan
pub fn verify_plan(_p: &Plan, _m: &KernelModule) -> Result<(), Vec<VerifyError>> {
    Ok(())
}
