//! Safe CANN runtime: device, stream, event, buffer.
