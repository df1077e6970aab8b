//! Element types and formats of a cache. Blocks are copied as bytes; both are kept to refuse peers
//! that mean something else by the same bytes.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ffi;

/// Type of a cache's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum DType {
    /// bfloat16.
    BFloat16,
    /// IEEE half.
    Float16,
    /// IEEE single.
    Float32,
    /// IEEE double.
    Float64,
    /// 8-bit float, 4 exponent bits, no infinities.
    Float8E4M3,
    /// 8-bit float, 5 exponent bits.
    Float8E5M2,
    /// Signed byte.
    Int8,
    /// Unsigned byte.
    UInt8,
    /// Signed, 16 bits.
    Int16,
    /// Signed, 32 bits.
    Int32,
    /// Signed, 64 bits.
    Int64,
}

/// Every type with its name as torch spells it, without the "torch." prefix.
const NAMES: [(DType, &str); 11] = [
    (DType::BFloat16, "bfloat16"),
    (DType::Float16, "float16"),
    (DType::Float32, "float32"),
    (DType::Float64, "float64"),
    (DType::Float8E4M3, "float8_e4m3fn"),
    (DType::Float8E5M2, "float8_e5m2"),
    (DType::Int8, "int8"),
    (DType::UInt8, "uint8"),
    (DType::Int16, "int16"),
    (DType::Int32, "int32"),
    (DType::Int64, "int64"),
];

impl DType {
    /// The type that torch calls so, with or without "torch." in front.
    pub fn from_torch(name: &str) -> Option<Self> {
        let name = name.strip_prefix("torch.").unwrap_or(name);
        NAMES
            .iter()
            .find(|(_, known)| *known == name)
            .map(|(dtype, _)| *dtype)
    }

    /// Bytes of one element.
    pub fn size(self) -> u64 {
        match self {
            Self::Float8E4M3 | Self::Float8E5M2 | Self::Int8 | Self::UInt8 => 1,
            Self::BFloat16 | Self::Float16 | Self::Int16 => 2,
            Self::Float32 | Self::Int32 => 4,
            Self::Float64 | Self::Int64 => 8,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = NAMES
            .iter()
            .find(|(dtype, _)| dtype == self)
            .map_or("unknown", |(_, name)| name);
        formatter.write_str(name)
    }
}

/// How the elements of a block are arranged on the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Format {
    /// As the shape says.
    #[default]
    Nd,
    /// FRACTAL_NZ: permuted within the block, so blocks travel whole.
    FractalNz,
    /// Another one, by CANN's number.
    Other(i32),
}

impl Format {
    /// From CANN's number, as `torch_npu.get_npu_format` returns it.
    pub fn from_acl(number: i32) -> Self {
        match number {
            ffi::CANN_FORMAT_ND => Self::Nd,
            ffi::CANN_FORMAT_FRACTAL_NZ => Self::FractalNz,
            other => Self::Other(other),
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nd => formatter.write_str("ND"),
            Self::FractalNz => formatter.write_str("FRACTAL_NZ"),
            Self::Other(number) => write!(formatter, "format {number}"),
        }
    }
}
