import { codeOf } from '../../shared/errors.ts'
import type { Log } from '../log.ts'
import type { Tracer } from './tracing.ts'

/** Whether OpenTelemetry's own variables ask for traces. */
export const wantsTraces = (env: NodeJS.ProcessEnv): boolean => {
  if (env.OTEL_SDK_DISABLED?.toLowerCase() === 'true') return false
  const exporters = (env.OTEL_TRACES_EXPORTER ?? '').split(',').map(name => name.trim())
  if (exporters.includes('none')) return false
  return (
    exporters.includes('otlp') || Boolean(env.OTEL_EXPORTER_OTLP_ENDPOINT || env.OTEL_EXPORTER_OTLP_TRACES_ENDPOINT)
  )
}

/** Packages that are not dependencies of Tidings, because few installations trace. */
const PACKAGES =
  '@opentelemetry/api @opentelemetry/resources @opentelemetry/sdk-trace @opentelemetry/exporter-trace-otlp-proto'

/** Loads OpenTelemetry's SDK if it is requested. If it is missing, the server runs without traces and logs that. */
export const loadTracer = async (env: NodeJS.ProcessEnv, log: Log): Promise<Tracer | undefined> => {
  if (!wantsTraces(env)) return undefined
  const protocol = env.OTEL_EXPORTER_OTLP_TRACES_PROTOCOL ?? env.OTEL_EXPORTER_OTLP_PROTOCOL ?? 'http/protobuf'
  if (protocol !== 'http/protobuf') {
    log.error({ protocol }, 'no traces are sent: OTEL_EXPORTER_OTLP_PROTOCOL can be http/protobuf and nothing else')
    return undefined
  }
  try {
    const { createTracer } = await import('./otel.ts')
    return createTracer(env)
  } catch (error) {
    if (codeOf(error) !== 'ERR_MODULE_NOT_FOUND') throw error
    log.error(`no traces are sent: OpenTelemetry is not installed; npm install ${PACKAGES}`)
    return undefined
  }
}
