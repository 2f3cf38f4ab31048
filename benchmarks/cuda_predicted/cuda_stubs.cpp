// A CUDA device that does nothing, for a machine without a GPU: tensors without data can be "on" it.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {

c10::Stream default_stream(c10::Device device) {
  return c10::Stream(c10::Stream::DEFAULT, c10::Device(device.type(), 0));
}

struct SingleDeviceGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::DeviceType::CUDA; }
  c10::Device getDevice() const override { return c10::Device(type(), 0); }
  c10::Device exchangeDevice(c10::Device) const override { return getDevice(); }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device device) const override { return default_stream(device); }
  c10::Stream getDefaultStream(c10::Device device) const override { return default_stream(device); }
  c10::Stream getNewStream(c10::Device device, int) const override { return default_stream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return default_stream(stream.device()); }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void**, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, c10::DeviceIndex) const noexcept override {}
};

}  // namespace

namespace at {

struct IdleHooks : CUDAHooksInterface {
  explicit IdleHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isAvailable() const override { return true; }
  bool isBuilt() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex current_device() const override { return 0; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  DeviceIndex deviceCount() const override { return 1; }
  int getNumGPUs() const override { return 1; }
  bool isPinnedPtr(const void*) const override { return false; }
};

C10_REGISTER_CLASS_WITH_PRIORITY(CUDAHooksRegistry, CUDAHooks, ::c10::REGISTRY_PREFERRED, IdleHooks)

}  // namespace at

// Called after torch is loaded, which registers a guard of its own if it is built with CUDA.
extern "C" void register_guard() {
  static const c10::impl::DeviceGuardImplRegistrar registrar(c10::DeviceType::CUDA, new SingleDeviceGuard());
}
