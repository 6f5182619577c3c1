export * from '@tidings/receiver'
