# ruby main.rb, and in another terminal: npx tidings webhooks create http://127.0.0.1:3000/hooks
# For trying it out, without a gem: in production, Puma or your Rack server replaces this loop.
require 'socket'
require 'stringio'
require_relative 'tidings_receiver'

receiver = TidingsReceiver.new(
  issuer: ENV.fetch('ISSUER', 'http://127.0.0.1:4100'),
  audience: ENV.fetch('AUDIENCE', 'http://127.0.0.1:3000/hooks')
) { |event| puts "#{event['eventType']} #{event['payload']}" }

$stdout.sync = true
server = TCPServer.new('127.0.0.1', ENV.fetch('PORT', '3000').to_i)
loop do
  Thread.new(server.accept) do |socket|
    method = socket.gets.to_s[/\A\S+/]
    headers = {}
    while (line = socket.gets) && line != "\r\n"
      name, value = line.chomp.split(': ', 2)
      headers[name.downcase] = value
    end
    body = StringIO.new(socket.read([headers['content-length'].to_i, 2_000_000].min))
    answer = receiver.call('REQUEST_METHOD' => method, 'HTTP_AUTHORIZATION' => headers['authorization'], 'rack.input' => body)
    content = answer[2].join
    lines = answer[1].merge('content-length' => content.bytesize, 'connection' => 'close').map { |name, value| "#{name}: #{value}\r\n" }
    socket.write("HTTP/1.1 #{answer[0]} \r\n#{lines.join}\r\n#{content}")
  rescue IOError, SystemCallError
    # The sender has hung up without sending anything.
  ensure
    socket.close
  end
end
